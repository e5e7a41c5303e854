//! Has Cargo notice a migration that is added: what is compiled in is the folder as it was.

fn main() {
    println!("cargo:rerun-if-changed=migrations");
}
