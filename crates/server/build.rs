//! Compiles proto/ into Rust, and into the descriptors that gRPC's reflection serves. No protoc is needed.

use std::path::PathBuf;
use std::{env, error, fs};

use prost::Message;
use prost_types::DescriptorProto;
use prost_types::field_descriptor_proto::Type;

/// Strings that gateways fill with what clients send, which may not be UTF-8. Such strings could not be decoded, and
/// the call would end in an error that some gateways let pass. Bytes look the same on the wire, and are always decoded.
const BYTES: [&str; 6] = [
    "RateLimitRequest.domain",
    "RateLimitDescriptor.Entry.key",
    "RateLimitDescriptor.Entry.value",
    "ReserveRequest.domain",
    "CommitRequest.domain",
    "CommitRequest.reservation_id",
];

fn main() -> Result<(), Box<dyn error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let mut descriptors = protox::compile(["envoy/service/ratelimit/v3/rls.proto", "kuadrantrls.proto"], ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    for message in descriptors.file.iter_mut().flat_map(|file| &mut file.message_type) {
        take_bytes(message, "");
    }
    // Bytes are parts of the bytes that came, not copies.
    prost_build::Config::new().bytes(["."]).include_file("messages.rs").compile_fds(descriptors)?;
    Ok(())
}

/// Makes those fields of `message` and of the messages within it bytes that are among [`BYTES`].
fn take_bytes(message: &mut DescriptorProto, within: &str) {
    let path = format!("{within}{}.", message.name());
    for field in &mut message.field {
        if BYTES.contains(&format!("{path}{}", field.name()).as_str()) {
            field.set_type(Type::Bytes);
        }
    }
    for nested in &mut message.nested_type {
        take_bytes(nested, &path);
    }
}
