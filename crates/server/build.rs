//! Compiles proto/ into Rust, and into the descriptors that gRPC's reflection serves. No protoc is needed.

use std::path::PathBuf;
use std::{env, error, fs, io};

use prost::Message;
use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, FileDescriptorSet};

fn main() -> Result<(), Box<dyn error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let mut descriptors = protox::compile(["envoy/service/ratelimit/v3/rls.proto", "kuadrantrls.proto"], ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    for message in descriptors.file.iter_mut().flat_map(|file| &mut file.message_type) {
        take_bytes(message);
    }
    generate(descriptors, out.join("services"))?;
    // A configuration whose strings are not UTF-8 is refused.
    let files = ["envoy/service/discovery/v3/discovery.proto", "ratelimit/config/ratelimit/v3/rls_conf.proto"];
    generate(protox::compile(files, ["proto"])?, out.join("discovery"))?;
    Ok(())
}

/// Writes `messages.rs`, which includes the code of all packages, into a new directory.
fn generate(descriptors: FileDescriptorSet, directory: PathBuf) -> io::Result<()> {
    fs::create_dir_all(&directory)?;
    // Bytes are parts of the bytes that came, not copies.
    prost_build::Config::new().bytes(["."]).out_dir(directory).include_file("messages.rs").compile_fds(descriptors)
}

/// Makes the strings of `message` and of the messages within it bytes, which look the same on the wire. Gateways fill strings with
/// what clients send, which may not be UTF-8. Such strings could not be decoded, and the call would end in an error that some
/// gateways let pass.
fn take_bytes(message: &mut DescriptorProto) {
    for field in message.field.iter_mut().filter(|field| field.r#type() == Type::String) {
        field.set_type(Type::Bytes);
    }
    message.nested_type.iter_mut().for_each(take_bytes);
}
