//! An application outside of the workspace, which depends on `onceward` alone,
//! is built and run.

use std::path::Path;
use std::process::Command;

/// The crate is copied, so that its lock file and its store are made in the
/// build directory. It gets the workspace's lock file and target directory: the
/// same versions, most of them compiled already, and no network.
#[test]
fn an_application_needs_no_other_crate_of_ours() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join("outside");
    let _ = std::fs::remove_dir_all(&copy);
    std::fs::create_dir_all(copy.join("src")).expect("the copy has a directory");
    let manifest = std::fs::read_to_string(here.join("tests/outside/Cargo.toml"));
    let manifest = manifest.expect("the manifest is there");
    let ours = format!("path = {here:?}");
    assert!(manifest.contains(r#"path = "../..""#));
    let manifest = manifest.replace(r#"path = "../..""#, &ours);
    std::fs::write(copy.join("Cargo.toml"), manifest).expect("the manifest is written");
    for (from, to) in [
        ("tests/outside/src/main.rs", "src/main.rs"),
        ("../../Cargo.lock", "Cargo.lock"),
    ] {
        std::fs::copy(here.join(from), copy.join(to)).expect("the file is copied");
    }

    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent();
    let target = target.expect("the directory for tests is in the build directory");
    let output = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--offline"])
        .arg("--manifest-path")
        .arg(copy.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(target)
        .arg("--")
        .arg(copy.join("data"))
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
