//! Checks that no files of a crate import each other in circles, and that all files named in docs/architecture.md exist.

mod source;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::Path;

use self::source::{Imports, read_imports};

#[test]
fn no_files_import_each_other_in_circles() {
    let mut all = 0;
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let crates = fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path().join("src"));
    for source in crates.chain([root.join("src")]) {
        let imports = read_imports(&source);
        let source = source.display();
        let circles = circles(&imports);
        for circle in &circles {
            println!("{source}: {}", describe(circle));
            for pair in circle.windows(2) {
                println!("    {} imports {}", pair[0], names(&imports, &pair[0], &pair[1]));
            }
        }
        all += circles.len();
    }
    println!("{all} circles");
    assert_eq!(all, 0, "files import each other in circles: see above");
}

#[test]
fn files_named_on_the_architecture_page_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/architecture.md")).unwrap();
    // Splitting a line at its backquotes puts the quoted parts at odd positions.
    let quoted = page.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    let is_path = |text: &&str| {
        text.contains('/') && !text.starts_with('/') && !text.contains([' ', '*', ':']) && !text.contains("NAME")
    };
    let in_crate = |path: &str| {
        let (name, rest) = path.split_once('/')?;
        Some(root.join("crates").join(name).join("src").join(rest))
    };
    let is_missing = |path: &&str| {
        !root.join(path).exists()
            && !root.join("src").join(path).exists()
            && !in_crate(path).is_some_and(|path| path.exists())
    };
    let missing: Vec<&str> = quoted.filter(is_path).filter(is_missing).collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn imports_are_followed_to_the_defining_file() {
    let crate_files = [
        ("lib.rs", "mod parent;\nmod other;"),
        (
            "parent.rs",
            "mod child;\nmod sibling;\npub use self::sibling::Shared;\nuse bytes::Bytes;\npub struct Own;\n\
             #[cfg(test)]\nuse crate::other::OnlyTested;\n#[cfg(all(test, unix))]\nmod tests;",
        ),
        (
            "parent/child.rs",
            "use super::{Bytes, Shared};\nfn f(x: crate::other::Other) -> u8 { assert!(super::super::other::g()); 0 }",
        ),
        ("parent/sibling.rs", "pub struct Shared(super::Own);"),
        ("other/mod.rs", "pub struct Other;\nimpl Other { pub fn g() {} }\nmade! { struct OnlyTested; }"),
    ];
    let directory = tempfile::tempdir().unwrap();
    for (file, text) in crate_files {
        let path = directory.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let imports = read_imports(directory.path());
    let found: Vec<String> =
        imports.keys().map(|(from, to)| format!("{from}: {} of {to}", names(&imports, from, to))).collect();
    let expected = [
        "parent.rs: Shared of parent/sibling.rs",
        "parent/child.rs: Other, g of other/mod.rs",
        "parent/child.rs: Shared of parent/sibling.rs",
        "parent/sibling.rs: Own of parent.rs",
    ];
    assert_eq!(found, expected);
    let circles: Vec<String> = circles(&imports).iter().map(|circle| describe(circle)).collect();
    assert_eq!(circles, ["parent.rs -> parent/sibling.rs -> parent.rs"]);
}

fn names(imports: &Imports, from: &str, to: &str) -> String {
    let names: Vec<&str> = imports[&(from.to_owned(), to.to_owned())].iter().map(String::as_str).collect();
    names.join(", ")
}

/// Returns circles, the shortest first, so that no two of them share an import. The first file is repeated at the end.
fn circles(imports: &Imports) -> BTreeSet<Vec<String>> {
    let mut imported: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (from, to) in imports.keys() {
        imported.entry(from).or_default().insert(to);
    }
    let mut circles = BTreeSet::new();
    loop {
        let pairs = imported.iter().flat_map(|(from, targets)| targets.iter().map(move |to| (*from, *to)));
        let ways = pairs.filter_map(|(from, to)| shortest_way(&imported, to, from));
        let Some(mut circle) = ways.map(rotate).min_by_key(|way| (way.len(), way.clone())) else { return circles };
        circle.push(circle[0]);
        for pair in circle.windows(2) {
            imported.get_mut(pair[0]).unwrap().remove(pair[1]);
        }
        circles.insert(circle.into_iter().map(str::to_owned).collect());
    }
}

/// Rotates a circle so that it begins with the file that sorts first.
fn rotate(mut circle: Vec<&str>) -> Vec<&str> {
    let first = (0..circle.len()).min_by_key(|index| circle[*index]).unwrap();
    circle.rotate_left(first);
    circle
}

fn shortest_way<'a>(imported: &BTreeMap<&'a str, BTreeSet<&'a str>>, from: &'a str, to: &str) -> Option<Vec<&'a str>> {
    let mut reached_from = BTreeMap::from([(from, from)]);
    let mut queue = VecDeque::from([from]);
    while let Some(file) = queue.pop_front() {
        if file == to {
            let mut way = vec![file];
            while *way.last().unwrap() != from {
                way.push(reached_from[way.last().unwrap()]);
            }
            way.reverse();
            return Some(way);
        }
        for next in imported.get(file).into_iter().flatten() {
            if !reached_from.contains_key(next) {
                reached_from.insert(*next, file);
                queue.push_back(next);
            }
        }
    }
    None
}

fn describe(circle: &[String]) -> String {
    circle.join(" -> ")
}
