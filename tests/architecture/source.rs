//! Reads the imports of the crate's files from their tokens.
//!
//! An import is followed through re-exports to the file that defines the item. A re-export is an import, too. Code that
//! only tests compile does not count, and neither does `mod`. A method call does not count as an import.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::iter::Peekable;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// Keywords that precede the name of an item.
const DEFINITIONS: [&str; 8] = ["fn", "struct", "enum", "union", "trait", "type", "const", "static"];
/// First words of an item.
const ITEMS: [&str; 13] =
    ["use", "mod", "impl", "async", "unsafe", "extern", "fn", "struct", "enum", "trait", "type", "const", "static"];

/// Imported names, by importing file and defining file.
pub type Imports = BTreeMap<(String, String), BTreeSet<String>>;

/// Returns the imports between the files of a crate with the root `lib.rs` in `directory`.
pub fn read_imports(directory: &Path) -> Imports {
    let tree = ModuleTree::read(directory);
    let mut imports = Imports::new();
    for (id, module) in tree.modules.iter().enumerate() {
        for path in &module.used {
            for target in tree.resolve(id, path, &mut BTreeSet::new()) {
                let Target::Item(defining) = target else { continue };
                let file = &tree.modules[defining].file;
                if *file != module.file {
                    let names = imports.entry((module.file.clone(), file.clone())).or_default();
                    names.insert(path.last().unwrap().clone());
                }
            }
        }
    }
    imports
}

/// A module's place in its tree.
type ModuleId = usize;
/// The segments of a path, such as `crate`, `store`, `Batch`.
pub type ItemPath = Vec<String>;

struct Module {
    file: String,
    parent: ModuleId,
    /// Several modules have the same name if configurations choose between them.
    children: BTreeMap<String, Vec<ModuleId>>,
    items: BTreeSet<String>,
    /// Paths in `use` declarations, by the name that they introduce.
    names: BTreeMap<String, Vec<ItemPath>>,
    globs: Vec<ItemPath>,
    /// Paths in code and in `use` declarations.
    used: BTreeSet<ItemPath>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    Module(ModuleId),
    /// An item that this module defines.
    Item(ModuleId),
}

struct ModuleTree {
    modules: Vec<Module>,
}

impl ModuleTree {
    fn read(directory: &Path) -> Self {
        let mut tree = Self { modules: Vec::new() };
        tree.add_file(directory, Path::new("lib.rs"), 0);
        tree
    }

    fn add(&mut self, file: String, parent: ModuleId) -> ModuleId {
        self.modules.push(Module {
            file,
            parent,
            children: BTreeMap::new(),
            items: BTreeSet::new(),
            names: BTreeMap::new(),
            globs: Vec::new(),
            used: BTreeSet::new(),
        });
        self.modules.len() - 1
    }

    fn add_file(&mut self, directory: &Path, file: &Path, parent: ModuleId) -> ModuleId {
        let text =
            fs::read_to_string(directory.join(file)).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let tokens = text.parse().unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let id = self.add(file.display().to_string(), parent);
        let is_named_by_directory = file.ends_with("mod.rs") || file.ends_with("lib.rs");
        let below = if is_named_by_directory { file.parent().unwrap().to_owned() } else { file.with_extension("") };
        self.add_items(directory, &below, id, tokens);
        id
    }

    /// Reads a module's items. The files of its children are in `below`.
    fn add_items(&mut self, directory: &Path, below: &Path, id: ModuleId, tokens: TokenStream) {
        let mut tokens = tokens.into_iter().peekable();
        let mut rest = Vec::new();
        let mut path_attribute = None;
        while let Some(token) = tokens.next() {
            if is_punct(&token, '#') {
                match read_attribute(&mut tokens) {
                    Attribute::TestOnly => skip_item(&mut tokens),
                    Attribute::Path(path) => path_attribute = Some(path),
                    Attribute::Other => {}
                }
                continue;
            }
            let word = token.to_string();
            let name = tokens.peek().filter(|next| matches!(next, TokenTree::Ident(_))).map(ToString::to_string);
            if word == "mod" {
                let child = name.unwrap();
                tokens.next();
                let child_id = match tokens.next() {
                    Some(TokenTree::Group(body)) => {
                        let child_id = self.add(self.modules[id].file.clone(), id);
                        self.add_items(directory, &below.join(&child), child_id, body.stream());
                        child_id
                    }
                    _ => {
                        let file = child_file(directory, below, &child, path_attribute.take());
                        self.add_file(directory, &file, id)
                    }
                };
                self.modules[id].children.entry(child).or_default().push(child_id);
                continue;
            }
            if word == "macro_rules"
                && let Some(name) = tokens.clone().nth(1)
            {
                self.modules[id].items.insert(name.to_string());
            } else if DEFINITIONS.contains(&word.as_str())
                && let Some(name) = name
            {
                self.modules[id].items.insert(name);
            }
            rest.push(token);
        }
        read_code(&mut self.modules[id], rest.into_iter().collect());
    }

    /// Returns the targets of `path`, as written in `module`; none for a path outside this crate.
    fn resolve(
        &self,
        module: ModuleId,
        path: &[String],
        seen: &mut BTreeSet<(ModuleId, ItemPath)>,
    ) -> BTreeSet<Target> {
        let Some((first, rest)) = path.split_first() else { return BTreeSet::from([Target::Module(module)]) };
        if !seen.insert((module, path.to_vec())) {
            return BTreeSet::new();
        }
        match first.as_str() {
            "crate" => return self.resolve_within(0, rest, seen),
            "self" => return self.resolve_within(module, rest, seen),
            "super" => return self.resolve_within(self.modules[module].parent, rest, seen),
            _ => {}
        }
        let mut targets = BTreeSet::new();
        for target in self.look_up(module, first, seen) {
            match target {
                Target::Module(inner) => targets.extend(self.resolve_within(inner, rest, seen)),
                Target::Item(_) => _ = targets.insert(target),
            }
        }
        targets
    }

    /// Resolves like `resolve`, but assumes that a macro defines a name that is neither defined nor imported here.
    fn resolve_within(
        &self,
        module: ModuleId,
        path: &[String],
        seen: &mut BTreeSet<(ModuleId, ItemPath)>,
    ) -> BTreeSet<Target> {
        let mut targets = self.resolve(module, path, seen);
        let Module { children, names, .. } = &self.modules[module];
        if targets.is_empty()
            && path.first().is_some_and(|name| !children.contains_key(name) && !names.contains_key(name))
        {
            targets.insert(Target::Item(module));
        }
        targets
    }

    fn look_up(&self, id: ModuleId, name: &str, seen: &mut BTreeSet<(ModuleId, ItemPath)>) -> BTreeSet<Target> {
        let module = &self.modules[id];
        let mut targets = BTreeSet::new();
        targets.extend(module.children.get(name).into_iter().flatten().map(|child| Target::Module(*child)));
        if module.items.contains(name) {
            targets.insert(Target::Item(id));
        }
        for path in module.names.get(name).into_iter().flatten() {
            targets.extend(self.resolve(id, path, seen));
        }
        if targets.is_empty() {
            for glob in &module.globs {
                let globbed = self.resolve(id, glob, seen);
                let modules = globbed.into_iter().filter_map(|target| match target {
                    Target::Module(inner) if inner != id => Some(inner),
                    _ => None,
                });
                targets.extend(modules.flat_map(|inner| self.resolve(inner, &[name.to_owned()], seen)));
            }
        }
        targets
    }
}

fn child_file(directory: &Path, below: &Path, child: &str, path_attribute: Option<String>) -> PathBuf {
    if let Some(path) = path_attribute {
        return below.join(path);
    }
    let file = below.join(format!("{child}.rs"));
    if directory.join(&file).exists() { file } else { below.join(child).join("mod.rs") }
}

/// Reads the `use` declarations and the paths in `tokens`, including groups.
fn read_code(module: &mut Module, tokens: TokenStream) {
    let mut tokens = tokens.into_iter().peekable();
    // The token before a path. A method or field follows `.`, a definition follows `fn`, and an associated item follows
    // `::`.
    let mut before = String::new();
    while let Some(token) = tokens.next() {
        let word = token.to_string();
        match token {
            TokenTree::Group(group) => {
                read_code(module, group.stream());
            }
            TokenTree::Punct(punct) if punct.as_char() == '#' => {
                if matches!(read_attribute(&mut tokens), Attribute::TestOnly) {
                    skip_item(&mut tokens);
                }
            }
            // This is a lifetime.
            TokenTree::Punct(punct) if punct.as_char() == '\'' => _ = tokens.next(),
            TokenTree::Ident(_) if word == "use" && !tokens.peek().is_some_and(|next| is_punct(next, '<')) => {
                read_use(module, &mut tokens, Vec::new());
            }
            TokenTree::Ident(_) => {
                let mut path = vec![word.clone()];
                while let Some(segment) = next_segment(&mut tokens) {
                    path.push(segment);
                }
                let is_called = match tokens.peek() {
                    Some(TokenTree::Group(group)) => group.delimiter() == Delimiter::Parenthesis,
                    Some(token) => is_punct(token, '!'),
                    None => false,
                };
                // Other short names in lower case are variables and fields.
                let is_used = path.len() > 1 || is_called || path[0].starts_with(char::is_uppercase);
                if is_used && !matches!(before.as_str(), "." | "fn" | "::") {
                    module.used.insert(path);
                }
            }
            _ => {}
        }
        before = if before == ":" && word == ":" || before == "." && word == "." { word.repeat(2) } else { word };
    }
}

/// Returns the segment after `::`, if there is one.
fn next_segment(tokens: &mut Peekable<impl Iterator<Item = TokenTree> + Clone>) -> Option<String> {
    let mut ahead = tokens.clone();
    if !is_punct(&ahead.next()?, ':') || !is_punct(&ahead.next()?, ':') {
        return None;
    }
    let TokenTree::Ident(segment) = ahead.next()? else { return None };
    *tokens = ahead;
    Some(segment.to_string())
}

/// Reads a `use` declaration, or one of the trees in its braces, up to `;` or `,`. `path` is the prefix.
fn read_use(module: &mut Module, tokens: &mut Peekable<impl Iterator<Item = TokenTree>>, mut path: ItemPath) {
    let mut name = None;
    loop {
        let token = tokens.next();
        match &token {
            Some(TokenTree::Punct(punct)) if punct.as_char() == ':' => continue,
            Some(TokenTree::Punct(punct)) if punct.as_char() == '*' => {
                module.globs.push(path);
                path = Vec::new();
                continue;
            }
            Some(TokenTree::Group(group)) => {
                let mut trees = group.stream().into_iter().peekable();
                while trees.peek().is_some() {
                    read_use(module, &mut trees, path.clone());
                }
                path = Vec::new();
                continue;
            }
            Some(TokenTree::Ident(ident)) if *ident == "as" => {
                name = tokens.next().map(|token| token.to_string());
                continue;
            }
            Some(TokenTree::Ident(ident)) => {
                if *ident != "self" || path.is_empty() {
                    path.push(ident.to_string());
                }
                continue;
            }
            _ => {}
        }
        if let Some(last) = path.last() {
            let name = name.unwrap_or_else(|| last.clone());
            module.used.insert(path.clone());
            module.names.entry(name).or_default().push(path);
        }
        return;
    }
}

enum Attribute {
    /// `#[cfg(test)]`, or another predicate that requires `test`.
    TestOnly,
    /// `#[path = "…"]`
    Path(String),
    Other,
}

/// Reads an attribute after its `#`.
fn read_attribute(tokens: &mut Peekable<impl Iterator<Item = TokenTree>>) -> Attribute {
    if tokens.peek().is_some_and(|next| is_punct(next, '!')) {
        tokens.next();
    }
    let Some(TokenTree::Group(group)) = tokens.next() else { return Attribute::Other };
    let content: Vec<TokenTree> = group.stream().into_iter().collect();
    match content.as_slice() {
        [name, TokenTree::Group(predicate)] if name.to_string() == "cfg" => {
            if holds_without_test(predicate.stream()) == Some(false) { Attribute::TestOnly } else { Attribute::Other }
        }
        [name, _, value] if name.to_string() == "path" => {
            Attribute::Path(value.to_string().trim_matches('"').to_owned())
        }
        _ => Attribute::Other,
    }
}

/// Returns whether a `cfg` predicate holds without `test`; `None` if that depends on other configuration.
fn holds_without_test(predicate: TokenStream) -> Option<bool> {
    let tokens: Vec<TokenTree> = predicate.into_iter().collect();
    let [name, TokenTree::Group(group)] = tokens.as_slice() else {
        return (tokens.len() == 1 && tokens[0].to_string() == "test").then_some(false);
    };
    let parts: Vec<TokenTree> = group.stream().into_iter().collect();
    let parts: Vec<_> = parts.split(|token| is_punct(token, ',')).filter(|part| !part.is_empty()).collect();
    let held: Vec<_> = parts.into_iter().map(|part| holds_without_test(part.iter().cloned().collect())).collect();
    match name.to_string().as_str() {
        "not" => held[0].map(|holds| !holds),
        "all" if held.contains(&Some(false)) => Some(false),
        "any" if held.iter().all(|holds| *holds == Some(false)) => Some(false),
        _ => None,
    }
}

/// Skips an item, statement, field or arm, with its remaining attributes.
fn skip_item(tokens: &mut Peekable<impl Iterator<Item = TokenTree>>) {
    while tokens.peek().is_some_and(|next| is_punct(next, '#')) {
        tokens.next();
        tokens.next();
    }
    if tokens.next_if(|next| next.to_string() == "pub").is_some() {
        tokens.next_if(|next| matches!(next, TokenTree::Group(_)));
    }
    let is_item = tokens.peek().is_some_and(|next| ITEMS.contains(&next.to_string().as_str()));
    for token in tokens {
        let is_body = matches!(&token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace);
        if is_body || is_punct(&token, ';') || !is_item && is_punct(&token, ',') {
            return;
        }
    }
}

fn is_punct(token: &TokenTree, character: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == character)
}
