//! YAML as a tree: what is written, with lines, before anything is known about its meaning. Aliases are kept as such.

use std::collections::HashMap;
use std::rc::Rc;

use granit_parser::{Event, Parser, ScanError, Span};
use scalar::{Scalar, Value};

use super::Problems;

pub mod fields;
pub mod scalar;

/// A node of a document.
#[derive(Debug)]
pub struct Node<'a> {
    /// The line where the node begins, from 1.
    pub line: usize,
    content: Content<'a>,
}

/// The content of a node.
#[derive(Debug)]
pub enum Content<'a> {
    /// A scalar.
    Scalar(Scalar<'a>),
    /// The items of a list.
    Sequence(Vec<Node<'a>>),
    /// Keys and values, in turn.
    Mapping(Vec<Node<'a>>),
    /// A node that aliases may stand for.
    Anchored(Rc<Node<'a>>),
    /// A node that stands for another one.
    Alias(Rc<Node<'a>>),
}

impl<'a> Node<'a> {
    /// Returns the content of the node, or of the node that it stands for.
    pub fn content(&self) -> &Content<'a> {
        match &self.content {
            Content::Anchored(node) | Content::Alias(node) => node.content(),
            content => content,
        }
    }

    /// Returns the content of a node that is no alias.
    pub fn own_content(&self) -> &Content<'a> {
        match &self.content {
            Content::Anchored(node) => node.own_content(),
            content => content,
        }
    }

    /// Returns the node as a scalar.
    pub fn scalar(&self) -> Option<&Scalar<'a>> {
        match self.content() {
            Content::Scalar(scalar) => Some(scalar),
            _ => None,
        }
    }

    /// Returns whether the node is null.
    pub fn is_null(&self) -> bool {
        self.scalar().and_then(Scalar::value) == Some(Value::Null)
    }

    /// Returns the items of a list. Another node has none.
    pub fn items(&self) -> &[Self] {
        match self.content() {
            Content::Sequence(items) => items,
            _ => &[],
        }
    }

    /// Returns the value of a key in a mapping, unless it is null. The last of repeated keys counts.
    pub fn get(&self, key: &str) -> Option<&Self> {
        let Content::Mapping(items) = self.content() else { return None };
        let mut pairs = pairs(items).iter().rev();
        pairs.find_map(|[name, value]| (name.scalar()?.text == key && !value.is_null()).then_some(value))
    }

    /// Returns whether yaml.v2 refuses the document with this root because too much of it comes from aliases.
    pub fn has_excessive_aliases(&self) -> bool {
        !Decoding { nodes: 1, of_aliases: 0 }.add(self, false)
    }
}

/// Returns the keys and values of a mapping.
pub fn pairs<'n, 'a>(items: &'n [Node<'a>]) -> &'n [[Node<'a>; 2]] {
    items.as_chunks().0
}

/// Maximum number of collections around a node, with those that aliases stand for. Functions call themselves for nested nodes.
const MAX_DEPTH: usize = 250;
/// Maximum number of nodes in a file: more than a file of the maximum size has, unless it consists of signs. They take 40 bytes each.
const MAX_NODES: usize = 10_000_000;

/// Reads all documents of a text, which has this many lines `above` it in its file. Reports what is no YAML, and returns `None` then.
pub fn parse<'a>(text: &'a str, above: usize, problems: &mut Problems) -> Option<Vec<Node<'a>>> {
    parse_bounded(text, above, MAX_NODES, problems)
}

fn parse_bounded<'a>(text: &'a str, above: usize, max_nodes: usize, problems: &mut Problems) -> Option<Vec<Node<'a>>> {
    let options = granit_parser::options! { flow_nesting_limit: MAX_DEPTH, block_nesting_limit: MAX_DEPTH };
    let mut tree = Tree { above, ..Tree::default() };
    for event in Parser::new_from_str_with_options(text, options) {
        let added = event.map_err(|error: ScanError| (above + error.marker().line(), error.info().to_owned()));
        if let Err((line, what)) = added.and_then(|(event, span)| tree.add(event, span, max_nodes)) {
            let what = format!("cannot be read as YAML: {what}");
            problems.error(line.max(1), what, "correct it there");
            return None;
        }
    }
    Some(tree.documents)
}

/// The nodes so far.
#[derive(Default)]
struct Tree<'a> {
    /// The number of lines above the text, in the file that contains it.
    above: usize,
    documents: Vec<Node<'a>>,
    /// The collections around the next node.
    open: Vec<Collection<'a>>,
    /// The nodes of the document that have anchors, and their heights.
    anchored: HashMap<usize, (Rc<Node<'a>>, usize)>,
    nodes: usize,
}

/// A list or a mapping whose end has not come yet.
struct Collection<'a> {
    line: usize,
    anchor: usize,
    items: Vec<Node<'a>>,
    /// The collections that are nested in this one, at most, and itself.
    height: usize,
}

impl<'a> Tree<'a> {
    /// Adds what comes next. Returns the line of a problem, and the problem.
    fn add(&mut self, event: Event<'a>, span: Span, max_nodes: usize) -> Result<(), (usize, String)> {
        let line = self.above + span.start.line();
        let problem = |what: String| Err((line, what));
        match event {
            Event::DocumentStart(..) => self.anchored.clear(),
            Event::Scalar(text, style, anchor, tag) => match Scalar::new(text, style, tag.as_deref()) {
                Ok(scalar) => self.close(Node { line, content: Content::Scalar(scalar) }, anchor, 0),
                Err(tag) => return problem(format!("the tag {tag} is not supported")),
            },
            Event::SequenceStart(_, anchor, _) | Event::MappingStart(_, anchor, _) => {
                self.open.push(Collection { line, anchor, items: Vec::new(), height: 1 });
            }
            Event::SequenceEnd => self.end(Content::Sequence),
            Event::MappingEnd => self.end(Content::Mapping),
            Event::Alias(anchor) => match self.anchored.get(&anchor) {
                Some((node, height)) => {
                    let (node, height) = (Node { line, content: Content::Alias(Rc::clone(node)) }, *height);
                    self.close(node, 0, height);
                }
                None => return problem("an alias stands for a value that it is part of".to_owned()),
            },
            _ => {}
        }
        self.nodes += 1;
        // The innermost collection is counted twice.
        let depth = self.open.len() + self.open.last().map_or(1, |collection| collection.height) - 1;
        if depth > MAX_DEPTH {
            return problem(format!("more than {MAX_DEPTH} lists and mappings are in each other"));
        }
        if self.nodes > max_nodes {
            return problem(format!("the file has more than {max_nodes} values, lists and mappings"));
        }
        Ok(())
    }

    /// Ends the innermost collection.
    fn end(&mut self, content: fn(Vec<Node<'a>>) -> Content<'a>) {
        if let Some(Collection { line, anchor, items, height }) = self.open.pop() {
            self.close(Node { line, content: content(items) }, anchor, height);
        }
    }

    /// Puts a complete node in its place.
    fn close(&mut self, node: Node<'a>, anchor: usize, height: usize) {
        let node = if anchor > 0 {
            let (line, node) = (node.line, Rc::new(node));
            self.anchored.insert(anchor, (Rc::clone(&node), height));
            Node { line, content: Content::Anchored(node) }
        } else {
            node
        };
        match self.open.last_mut() {
            Some(around) => {
                around.height = around.height.max(height + 1);
                around.items.push(node);
            }
            None => self.documents.push(node),
        }
    }
}

/// The nodes that yaml.v2 has decoded, each as often as aliases stand for it, and those of aliases.
struct Decoding {
    nodes: u64,
    of_aliases: u64,
}

/// Up to this number of nodes, nearly all may be of aliases.
const FEW_NODES: f64 = 400_000.0;
/// From this number of nodes on, only few may be of aliases.
const MANY_NODES: f64 = 4_000_000.0;

impl Decoding {
    /// Adds a node and all nodes in it. Returns false if too many of them are of aliases.
    fn add(&mut self, node: &Node<'_>, is_of_alias: bool) -> bool {
        if let Content::Anchored(node) = &node.content {
            return self.add(node, is_of_alias);
        }
        self.nodes += 1;
        self.of_aliases += u64::from(is_of_alias);
        !self.is_excessive()
            && match &node.content {
                Content::Alias(node) => self.add(node, true),
                Content::Sequence(items) | Content::Mapping(items) => {
                    items.iter().all(|item| self.add(item, is_of_alias))
                }
                Content::Scalar(_) | Content::Anchored(_) => true,
            }
    }

    fn is_excessive(&self) -> bool {
        let nodes = self.nodes as f64;
        let progress = ((nodes - FEW_NODES) / (MANY_NODES - FEW_NODES)).clamp(0.0, 1.0);
        self.of_aliases > 100 && self.nodes > 1_000 && self.of_aliases as f64 / nodes > 0.99 - 0.89 * progress
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Report;

    fn problem(text: &str, max_nodes: usize) -> Option<String> {
        let mut problems = Problems::new("a.yaml");
        let documents = parse_bounded(text, 0, max_nodes, &mut problems);
        assert_eq!(documents.is_none(), problems.has_errors());
        Report::from(problems).errors.first().map(ToString::to_string)
    }

    /// Returns lists in each other.
    fn lists(depth: usize) -> String {
        "[".repeat(depth) + &"]".repeat(depth)
    }

    #[test]
    fn depth_is_bounded_with_what_aliases_stand_for() {
        let expected = "a.yaml:2: cannot be read as YAML: more than 250 lists and mappings are in each other; correct \
                        it there";
        let aliased = |around: usize| format!("- &a {}\n- {}*a{}", lists(100), "[".repeat(around), "]".repeat(around));
        assert_eq!(problem(&lists(250), MAX_NODES), None);
        assert_eq!(problem(&aliased(149), MAX_NODES), None);
        assert_eq!(problem(&aliased(150), MAX_NODES).as_deref(), Some(expected));
        let blocks: String = (0..200).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
        for text in [
            lists(251),
            format!("{blocks}{}{}", " ".repeat(200), lists(51)),
            "[".repeat(1_000_000),
            "- ".repeat(100_000),
        ] {
            assert!(problem(&text, MAX_NODES).is_some_and(|problem| problem.starts_with("a.yaml:")));
        }
        // Each line has the depth of the one before, and one more.
        let mut chain = "- &a0 []\n".to_owned();
        chain.extend((1..=250).map(|number| format!("- &a{number} [*a{}]\n", number - 1)));
        assert!(problem(&chain, MAX_NODES).is_some_and(|problem| problem.starts_with("a.yaml:250:")));
    }

    #[test]
    fn number_of_nodes_is_bounded() {
        assert_eq!(problem("[a, b, c]", 9), None);
        let expected = "a.yaml:1: cannot be read as YAML: the file has more than 8 values, lists and mappings; correct \
                        it there";
        assert_eq!(problem("[a, b, c]", 8).as_deref(), Some(expected));
    }

    #[test]
    fn aliases_may_stand_for_as_much_as_in_yaml_v2() {
        let excessive = |items: usize, aliases: usize, others: usize| {
            let text = format!(
                "- &a [{}]\n- [{}]\n- [{}]\n",
                "x, ".repeat(items),
                "*a, ".repeat(aliases),
                "y, ".repeat(others)
            );
            parse(&text, 0, &mut Problems::new("a.yaml")).unwrap()[0].has_excessive_aliases()
        };
        // The first list, its aliases and the list of these are decoded before the others.
        for (items, aliases, others, expected) in [
            (9, 100, 0, false),
            (1_000, 50, 0, false),
            (1_000, 120, 0, true),
            (1_000, 98, 0, false),
            (1_000, 395, 20_000, true),
            (100_000, 3, 100_000, false),
            (100_000, 5, 0, false),
            (100_000, 9, 0, true),
        ] {
            assert_eq!(excessive(items, aliases, others), expected, "{items} {aliases} {others}");
        }
    }

    #[test]
    fn value_that_contains_itself_is_refused() {
        let expected = "a.yaml:2: cannot be read as YAML: an alias stands for a value that it is part of; correct it \
                        there";
        assert_eq!(problem("&a\n- *a\n", MAX_NODES).as_deref(), Some(expected));
        assert!(problem("- *b\n- &b c\n", MAX_NODES).is_some_and(|problem| problem.starts_with("a.yaml:1:")));
    }
}
