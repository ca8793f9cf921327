//! The operations in OpenAPI's description.
#![expect(
    clippy::indexing_slicing,
    reason = "to assign to a member of a JSON object adds it, and nothing here is outside data"
)]

use serde_json::{Map, Value, json};

use super::field::{Field, Kind, Place};
use super::reply::{Member, Shape};
use super::table::{ENDPOINTS, Endpoint};
use divvy_access::Category;

/// Adds the operations to a description that has everything else, and the responses for errors.
pub fn add_operations(description: &mut Value) {
    let Some(paths) = description.get_mut("paths").and_then(Value::as_object_mut) else { return };
    for endpoint in ENDPOINTS {
        let Some((method, path)) = endpoint.http else { continue };
        let item = paths.entry(path).or_insert_with(|| json!({}));
        if let Some(item) = item.as_object_mut() {
            item.insert(method.to_lowercase(), operation(endpoint, method, path));
        }
    }
}

fn operation(endpoint: &Endpoint, method: &str, path: &str) -> Value {
    let noun = path.trim_start_matches("/v1/");
    let in_query = endpoint.fields.iter().filter(|field| !field.is_in_body).map(|field| parameter(field));
    let in_body: Vec<_> = endpoint.fields.iter().copied().filter(|field| field.is_in_body).collect();
    let mut described = json!({
        "operationId": format!("{}-{noun}", method.to_lowercase()),
        "summary": endpoint.summary,
        "parameters": in_query.collect::<Vec<_>>(),
        "responses": responses(endpoint, !in_body.is_empty()),
    });
    if !in_body.is_empty() {
        let required: Vec<_> = in_body.iter().filter(|field| field.is_required).map(|field| field.name).collect();
        let properties: Map<_, _> = in_body.iter().map(|field| (field.name.to_owned(), value_schema(field))).collect();
        let schema =
            json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false });
        described["requestBody"] = json!({ "required": true, "content": { "application/json": { "schema": schema } } });
    }
    if endpoint.category == Category::Status {
        described["security"] = json!([{}, { "password": [] }, { "user": [] }, { "token": [] }]);
    }
    described
}

fn parameter(field: &Field) -> Value {
    let mut parameter = json!({
        "name": field.name,
        "in": "query",
        "description": field.about,
        "required": field.is_required,
        "schema": value_schema(field),
    });
    if field.kind == Kind::Pairs {
        parameter["style"] = "form".into();
        parameter["explode"] = true.into();
    }
    parameter
}

fn value_schema(field: &Field) -> Value {
    let mut schema = match field.kind {
        // A cursor is only valid as the server has made it.
        Kind::Text if field.place == Place::Option("CURSOR") => {
            json!({ "type": "string", "pattern": "^(0|[^ ]+ .*)$" })
        }
        Kind::Text | Kind::Rule => json!({ "type": "string" }),
        Kind::Number { .. } | Kind::Seconds => {
            let (min, max) = field.kind.range();
            json!({ "type": "integer", "minimum": min, "maximum": max })
        }
        Kind::Choice(words) => json!({ "type": "string", "enum": words }),
        Kind::Pairs => json!({ "type": "object", "minProperties": 1, "additionalProperties": { "type": "string" } }),
    };
    if field.is_in_body {
        schema["description"] = field.about.into();
        if !field.is_required {
            schema["type"] = json!([schema["type"], "null"]);
        }
    }
    schema
}

fn responses(endpoint: &Endpoint, has_body: bool) -> Value {
    let page = schema(&endpoint.reply);
    let of_actor = endpoint.fields.iter().any(|field| field.place == Place::Nowhere && field.name == "actor");
    let schema = match endpoint.reply {
        // With a rule and an actor, the answer is the entry itself.
        Shape::Page { of: Shape::List(entry), .. } if of_actor => json!({ "anyOf": [schema(entry), page] }),
        _ => page,
    };
    let content = json!({ "application/json": { "schema": schema } });
    let mut responses = json!({ "200": { "description": "Done.", "content": content } });
    let of_all = [
        ("400", "BadQuery"),
        ("401", "NoPassword"),
        ("403", "Forbidden"),
        ("500", "RulesMistake"),
        ("503", "Unavailable"),
    ];
    let of_body = [("408", "TooSlow"), ("413", "TooLong"), ("415", "NotJson")];
    let of_body = of_body.iter().filter(|_| has_body);
    for (status, name) in of_all.iter().chain(of_body).chain(endpoint.fails) {
        responses[*status] = json!({ "$ref": format!("#/components/responses/{name}") });
    }
    responses
}

/// Returns the schema of values of this shape.
fn schema(shape: &Shape) -> Value {
    match shape {
        Shape::Text => json!({ "type": "string" }),
        Shape::MaybeText => json!({ "type": ["string", "null"] }),
        Shape::Word(words) => json!({ "type": "string", "enum": words }),
        Shape::Number => json!({ "type": "integer", "minimum": 0 }),
        Shape::MaybeNumber | Shape::SecondsLeft => json!({ "type": ["integer", "null"], "minimum": 0 }),
        Shape::Signed => json!({ "type": "integer" }),
        Shape::Flag => json!({ "type": "boolean" }),
        Shape::Row(members) | Shape::Map(members) | Shape::Only(members) => object(members),
        Shape::MaybeMap(members) => json!({ "anyOf": [object(members), { "type": "null" }] }),
        Shape::List(entry) => json!({ "type": "array", "items": schema(entry) }),
        Shape::Done(entry) => schema(entry),
        Shape::Page { name, of, about } => {
            let mut list = schema(of);
            list["description"] = (*about).into();
            let next = json!({
                "type": ["string", "null"],
                "description": "The cursor of the next page; null on the last one. Even an empty page need not be the last."
            });
            json!({ "type": "object", "required": [name, "next"], "properties": { *name: list, "next": next } })
        }
    }
}

fn object(members: &[Member]) -> Value {
    let property = |member: &Member| {
        let mut value = schema(&member.shape);
        value["description"] = member.about.into();
        (member.name.to_owned(), value)
    };
    let names: Vec<_> = members.iter().map(|member| member.name).collect();
    let properties: Map<_, _> = members.iter().map(property).collect();
    json!({ "type": "object", "required": names, "properties": properties })
}
