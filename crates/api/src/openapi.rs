//! OpenAPI's description of the HTTP API, made from the tables of operations and routes.
#![expect(
    clippy::indexing_slicing,
    reason = "to assign to a member of a JSON object adds it, and nothing here is outside data"
)]

use serde_json::{Map, Value, json};

use super::declaration::{
    BAD_QUERY, FORBIDDEN, Field, GET, Kind, Member, NO_PASSWORD, OF_BODY, OF_RULES, Place, Reply, Route, Shape, member,
};
use super::endpoints::{ENDPOINTS, Endpoint};
use super::hits;
use divvy_access::Category;

const PUBLIC: Route = Route { is_public: true, errors: &[], ..GET };

/// The requests about the server itself.
static OF_SERVER: &[Route] = &[
    Route {
        path: "/openapi.json",
        id: "description",
        summary: "Return this description",
        replies: &[Reply::json("200", "This description.", Shape::Object)],
        ..PUBLIC
    },
    Route {
        path: "/metrics",
        id: "metrics",
        summary: "Return metrics for Prometheus; the flag --metrics-path sets the path",
        replies: &[Reply::text("200", "Prometheus's text format.")],
        errors: &[NO_PASSWORD, FORBIDDEN],
        ..GET
    },
    Route {
        path: "/healthz",
        id: "alive",
        summary: "Report whether the process is alive",
        replies: &[Reply::text("200", "The process is alive.")],
        ..PUBLIC
    },
    Route {
        path: "/readyz",
        id: "ready",
        summary: "Report whether the server can answer hits",
        replies: &[
            Reply::text("200", "Hits can be answered."),
            Reply::text("503", "Do not send requests; the body says why."),
        ],
        ..PUBLIC
    },
];

/// Returns the description.
pub fn description() -> Value {
    let mut components = Components::default();
    let mut paths = Map::new();
    let mut add = |path: &str, method: &str, described: Value| {
        let item = paths.entry(path).or_insert_with(|| json!({}));
        item[method.to_lowercase()] = described;
    };
    for route in hits::ROUTES.iter().chain(OF_SERVER) {
        for method in route.methods {
            add(route.path, method, components.route(route, method));
        }
    }
    for endpoint in ENDPOINTS {
        if let Some((method, path)) = endpoint.http {
            add(path, method, components.endpoint(endpoint, method, path));
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "divvy",
            "version": "1",
            "summary": "Quotas and rate limits as a service",
            "description": "The server's rules file decides which limits apply to an operation. Bounds on lengths and numbers \
                            in this document are the defaults of the server's flags.",
            "license": { "name": "MIT", "identifier": "MIT" }
        },
        "security": [{}, { "password": [] }, { "user": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "password": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The server's --requirepass, if it has one. The flag --open lists what needs none. With \
                                    --access-file: a user's token."
                },
                "user": {
                    "type": "http",
                    "scheme": "basic",
                    "description": "A user of the server's --access-file, and its password."
                },
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "bearerFormat": "PASETO v4.local",
                    "description": "A token for one actor, which `divvy token` makes. It is for the status of that actor only."
                }
            },
            "schemas": components.schemas,
            "responses": components.responses
        }
    })
}

/// The parts that several paths refer to, by name.
#[derive(Default)]
struct Components {
    schemas: Map<String, Value>,
    responses: Map<String, Value>,
}

impl Components {
    fn route(&mut self, route: &Route, method: &str) -> Value {
        let in_path = route.in_path.iter().map(|member| ("path", member));
        let in_headers = route.headers.iter().map(|member| ("header", member));
        let parameters = in_path.chain(in_headers);
        let mut described = json!({
            "operationId": route.id,
            "summary": route.summary,
            "parameters": parameters.map(|(place, member)| self.parameter(place, member)).collect::<Vec<_>>(),
        });
        if route.methods.len() > 1 {
            let (first, rest) = method.split_at(1);
            described["operationId"] = format!("{}{first}{}", route.id, rest.to_lowercase()).into();
        }
        describe(&mut described, route.about);
        if let Some(body) = &route.body {
            described["requestBody"] = json_body(self.schema(body));
        }
        if route.is_public {
            described["security"] = json!([]);
        }
        let of_body = OF_BODY.iter().filter(|_| route.body.is_some());
        for reply in of_body.chain(route.errors).chain(route.replies) {
            described["responses"][reply.status] = match method {
                "HEAD" => json!({ "description": "Same as for GET, without a body." }),
                _ => self.reply(reply),
            };
        }
        described
    }

    fn endpoint(&mut self, endpoint: &Endpoint, method: &str, path: &str) -> Value {
        let noun = path.trim_start_matches("/v1/").replace('/', "-");
        let (in_body, in_query): (Vec<&Field>, Vec<&Field>) =
            endpoint.fields.iter().copied().partition(|field| field.is_in_body);
        let parameters = in_query.into_iter().map(|field| {
            let mut parameter = self.parameter("query", &field.member());
            if field.kind == Kind::Pairs {
                parameter["style"] = "form".into();
                parameter["explode"] = true.into();
            }
            parameter
        });
        let mut described = json!({
            "operationId": format!("{}-{noun}", method.to_lowercase()),
            "summary": endpoint.summary,
            "parameters": parameters.collect::<Vec<_>>(),
        });
        let of_body = OF_BODY.iter().filter(|_| !in_body.is_empty());
        for reply in of_body.chain(&[BAD_QUERY]).chain(OF_RULES).chain(endpoint.errors) {
            described["responses"][reply.status] = self.reply(reply);
        }
        if !in_body.is_empty() {
            described["requestBody"] = json_body(self.body(&in_body));
        }
        let mut reply = self.schema(&endpoint.reply);
        // With a rule and an actor, the answer is the entry itself.
        let is_of_actor = |field: &&Field| field.place == Place::Nowhere && field.name == "actor";
        if let Shape::Page { of: Shape::List(entry), .. } = endpoint.reply
            && endpoint.fields.iter().any(is_of_actor)
        {
            reply = json!({ "anyOf": [self.schema(entry), reply] });
        }
        described["responses"]["200"] =
            json!({ "description": "Done.", "content": { "application/json": { "schema": reply } } });
        if endpoint.category == Category::Status {
            // Customers may ask about themselves.
            described["security"] = json!([{}, { "password": [] }, { "user": [] }, { "token": [] }]);
        }
        described
    }

    /// Describes a reply. One with a name is among the components.
    fn reply(&mut self, reply: &Reply) -> Value {
        let mut described = json!({ "description": reply.about });
        for header in reply.headers {
            let mut value = json!({ "required": !header.is_optional, "schema": self.schema(&header.shape) });
            describe(&mut value, header.about);
            described["headers"][header.name] = value;
        }
        if let Some((kind, shape)) = &reply.content {
            described["content"][*kind] = json!({ "schema": self.schema(shape) });
        }
        if reply.name.is_empty() {
            return described;
        }
        self.responses.insert(reply.name.to_owned(), described);
        json!({ "$ref": format!("#/components/responses/{}", reply.name) })
    }

    fn parameter(&mut self, place: &str, member: &Member) -> Value {
        json!({
            "name": member.name,
            "in": place,
            "description": member.about,
            "required": !member.is_optional,
            "schema": self.schema(&member.shape),
        })
    }

    /// Returns the schema of values of this shape.
    fn schema(&mut self, shape: &Shape) -> Value {
        match *shape {
            Shape::Text => json!({ "type": "string" }),
            Shape::Pattern(pattern) => json!({ "type": "string", "pattern": pattern }),
            Shape::Word(words) => json!({ "type": "string", "enum": words }),
            Shape::Number => json!({ "type": "integer", "minimum": 0 }),
            Shape::Range(min, max @ u64::MAX) => {
                json!({ "type": "integer", "format": "uint64", "minimum": min, "maximum": max })
            }
            Shape::Range(min, max) => json!({ "type": "integer", "minimum": min, "maximum": max }),
            Shape::Signed => json!({ "type": "integer" }),
            Shape::Decimal => json!({ "type": "number", "minimum": 0 }),
            Shape::SecondsLeft => json!({ "type": ["integer", "null"], "minimum": 0 }),
            Shape::Flag => json!({ "type": "boolean" }),
            Shape::Operation => json!({
                "type": "object",
                "additionalProperties": { "anyOf": [
                    { "type": ["string", "boolean"] },
                    { "type": "number", "minimum": f64::MIN, "maximum": f64::MAX }
                ] },
                "examples": [{ "method": "GET", "path": "/status" }]
            }),
            Shape::Texts => json!({ "type": "object", "additionalProperties": { "type": "string" } }),
            Shape::Object => json!({ "type": "object" }),
            Shape::Row(members) | Shape::Map(members) | Shape::Only(members) => self.object(members),
            Shape::Variants { common, tag, of } => {
                let variant = |(words, own): &(&'static [&'static str], &'static [Member])| {
                    let mut schema = self.object(common.iter().chain(*own));
                    schema["properties"][tag] = self.schema(&Shape::Word(words));
                    if let Some(required) = schema["required"].as_array_mut() {
                        required.push(tag.into());
                    }
                    schema
                };
                json!({ "oneOf": of.iter().map(variant).collect::<Vec<_>>() })
            }
            Shape::List(entry) => json!({ "type": "array", "items": self.schema(entry) }),
            Shape::Length(of, min, max) => {
                let mut schema = self.schema(of);
                let unit = match schema["type"].as_str() {
                    Some("array") => "Items",
                    Some("object") => "Properties",
                    _ => "Length",
                };
                schema[format!("min{unit}")] = min.into();
                if max < u64::MAX {
                    schema[format!("max{unit}")] = max.into();
                }
                schema
            }
            Shape::Maybe(of) => nullable(self.schema(of)),
            Shape::OneOf(shapes) => {
                json!({ "oneOf": shapes.iter().map(|shape| self.schema(shape)).collect::<Vec<_>>() })
            }
            Shape::Named(name, of) => {
                let schema = self.schema(of);
                self.schemas.insert(name.to_owned(), schema);
                json!({ "$ref": format!("#/components/schemas/{name}") })
            }
            Shape::Done(entry) => self.schema(entry),
            Shape::Page { name, of, about, more } => {
                let next =
                    "The cursor of the next page; null on the last one. Even an empty page need not be the last.";
                let page = [member(name, *of, about), member("next", Shape::Maybe(&Shape::Text), next)];
                self.object(page.iter().chain(more))
            }
        }
    }

    fn object<'a>(&mut self, members: impl IntoIterator<Item = &'a Member>) -> Value {
        object(members.into_iter().map(|member| (*member, self.schema(&member.shape))))
    }

    /// Returns the schema of an object with these fields. Fields that may be missing may be null, too, except lists.
    fn body(&mut self, fields: &[&Field]) -> Value {
        let described = fields.iter().map(|field| {
            let member = field.member();
            let schema = match field.kind {
                Kind::List { of, max } => json!({ "type": "array", "items": self.body(of), "maxItems": max }),
                _ if member.is_optional => nullable(self.schema(&member.shape)),
                _ => self.schema(&member.shape),
            };
            (member, schema)
        });
        object(described)
    }
}

/// Returns the schema of an object with these members, each with its own schema.
fn object(members: impl Iterator<Item = (Member, Value)>) -> Value {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for (Member { name, is_optional, about, .. }, mut schema) in members {
        describe(&mut schema, about);
        properties.insert(name.to_owned(), schema);
        if !is_optional {
            required.push(name);
        }
    }
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

fn describe(value: &mut Value, about: &str) {
    if !about.is_empty() {
        value["description"] = about.into();
    }
}

fn json_body(schema: Value) -> Value {
    json!({ "required": true, "content": { "application/json": { "schema": schema } } })
}

/// Returns a schema that accepts null, too.
fn nullable(mut schema: Value) -> Value {
    match schema.get_mut("type") {
        Some(kind) => {
            *kind = json!([kind.take(), "null"]);
            schema
        }
        None => json!({ "anyOf": [schema, { "type": "null" }] }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_core::algorithm::Kind as Algorithm;
    use divvy_core::rules::setting_name;

    #[test]
    fn rules_are_described_with_every_algorithm_and_setting() {
        let settings = &description()["components"]["schemas"]["Rule"]["properties"];
        assert_eq!(settings["algorithm"]["enum"], json!(Algorithm::ALL.map(Algorithm::name)));
        for name in setting_name::NAMES {
            // `per` is another way to write `resetSeconds`.
            assert!(*name == setting_name::PER || settings.get(name).is_some(), "{name}");
        }
    }
}
