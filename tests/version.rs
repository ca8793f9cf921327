//! Every file that names divvy's version names the same one.

use std::fs;
use std::path::Path;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Files that name the version, with the text before it and the text after it.
const NAMES: [(&str, &str, &str); 9] = [
    ("fuzz/Cargo.lock", "name = \"divvy\"\nversion = \"", "\""),
    ("Dockerfile", "org.opencontainers.image.version=\"", "\""),
    ("packaging/helm/divvy/Chart.yaml", "\nversion: ", "\n"),
    ("packaging/helm/divvy/Chart.yaml", "appVersion: \"", "\""),
    ("packaging/helm/divvy/values.yaml", "docker build -t divvy:", " "),
    ("packaging/kubernetes/redis.yaml", "docker build -t divvy:", " "),
    ("packaging/kubernetes/redis.yaml", "image: divvy:", "\n"),
    ("packaging/kubernetes/rocksdb.yaml", "docker build -t divvy:", " "),
    ("packaging/kubernetes/rocksdb.yaml", "image: divvy:", "\n"),
];

#[test]
fn every_file_names_the_same_version() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let check = |file: &str, before: &str, after: &str| {
        let text = fs::read_to_string(root.join(file)).unwrap();
        let named: Vec<_> = text.split(before).skip(1).map(|rest| rest.split(after).next().unwrap()).collect();
        assert_eq!(named, [VERSION], "{file}: {before}");
    };
    for (file, before, after) in NAMES {
        check(file, before, after);
    }
    for directory in fs::read_dir(root.join("crates")).unwrap() {
        let name = format!("divvy-{}", directory.unwrap().file_name().into_string().unwrap());
        check("Cargo.toml", &format!("{name} = {{ version = \""), "\"");
        check("fuzz/Cargo.lock", &format!("name = \"{name}\"\nversion = \""), "\"");
    }
}
