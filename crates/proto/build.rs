//! Compiles the .proto files without an external protoc and keeps the descriptor set for reflection.

#![allow(clippy::print_stdout, reason = "build scripts talk to cargo on stdout")]

use prost::Message;
use std::{env, error::Error, fs, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = ["cachetier/v1/cache.proto", "cachetier/v1/admin.proto"];
    let descriptors = protox::compile(files, ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        .bytes(".")
        .extern_path(".cachetier.v1.ReadResponse", "crate::read_response::ReadResponse")
        .compile_fds(descriptors)?;
    Ok(())
}
