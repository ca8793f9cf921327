//! Every file that names divvy's version names the same one.

use std::fs;
use std::path::Path;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Files that name the version, with the text before it and the text after it.
const NAMES: [(&str, &str, &str); 9] = [
    ("Cargo.toml", "divvy-sys = { version = \"", "\""),
    ("tools/bench/Cargo.toml", "divvy = { version = \"", "\""),
    ("fuzz/Cargo.lock", "name = \"divvy\"\nversion = \"", "\""),
    ("fuzz/Cargo.lock", "name = \"divvy-sys\"\nversion = \"", "\""),
    ("Dockerfile", "org.opencontainers.image.version=\"", "\""),
    ("packaging/kubernetes/redis.yaml", "docker build -t divvy:", " "),
    ("packaging/kubernetes/redis.yaml", "image: divvy:", "\n"),
    ("packaging/kubernetes/rocksdb.yaml", "docker build -t divvy:", " "),
    ("packaging/kubernetes/rocksdb.yaml", "image: divvy:", "\n"),
];

#[test]
fn every_file_names_the_same_version() {
    for (file, before, after) in NAMES {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
        let named: Vec<_> = text.split(before).skip(1).map(|rest| rest.split(after).next().unwrap()).collect();
        assert_eq!(named, [VERSION], "{file}: {before}");
    }
}
