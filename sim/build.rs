//! Tells the compiler of the one condition this crate asks for: tokio's seedable scheduler.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(tokio_unstable)");
}
