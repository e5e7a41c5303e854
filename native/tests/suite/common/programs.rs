//! Other programs that tests run, built or installed if they are missing.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::skip::skip;

/// The user's cache, for slow builds.
pub fn cache() -> Result<PathBuf, String> {
    std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))
        .map(|cache| cache.join("weir"))
        .ok_or_else(|| "neither XDG_CACHE_HOME nor HOME is set".to_owned())
}

/// Skips the test, or fails it in an environment that must have everything.
pub fn missing(reason: &str) {
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{reason}");
    skip(reason);
}

pub fn run(command: &mut Command) -> Result<(), String> {
    let output = command
        .output()
        .map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    Err(format!(
        "{command:?}: {}: {}",
        output.status,
        message.trim().lines().last().unwrap_or_default()
    ))
}

/// The module of the programs next to these tests.
pub const GO_MODULE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/go");

/// A Go program, built into a separate folder that is deleted with it.
pub struct GoProgram {
    folder: PathBuf,
    pub path: PathBuf,
}

impl GoProgram {
    /// Builds a package with the versions of its module. `None` if Go is not installed or cannot build it.
    pub async fn built(module: &str, package: &str) -> Option<Self> {
        let folder = std::env::temp_dir().join(format!("weir-go-{}", Uuid::new_v4()));
        let (module, package, path) = (module.to_owned(), package.to_owned(), folder.join("program"));
        let built = tokio::task::spawn_blocking(move || go_build(&module, &package, path));
        let path = built.await.unwrap()?;
        Some(Self { folder, path })
    }
}

impl Drop for GoProgram {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Builds a package with the versions of a Go module into this file; `None` if Go is not installed or cannot build it.
pub fn go_build(module: &str, package: &str, program: PathBuf) -> Option<PathBuf> {
    if Command::new("go").arg("version").output().is_err() {
        skip(&format!("{package} in {module}: go is not installed"));
        return None;
    }
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).arg(package);
    match run(build.current_dir(module)) {
        Ok(()) => Some(program),
        Err(reason) => {
            missing(&format!("{package} in {module} could not be built: {reason}"));
            None
        }
    }
}

/// Ends a program by its standard input. It must succeed.
pub async fn end_by_input(mut program: Child) {
    drop(program.stdin.take());
    let ended = tokio::task::spawn_blocking(move || program.wait()).await.unwrap();
    assert!(ended.unwrap().success());
}

/// The Node that the repository pins, which runs TypeScript directly; `None` if it is not installed.
pub fn node() -> Option<PathBuf> {
    let node = Path::new(env!("CARGO_MANIFEST_DIR")).join("../node_modules/node/bin/node");
    if node.exists() {
        return Some(node);
    }
    missing("node is not installed; run npm install");
    None
}

/// A Python with these packages, created once; `None` if it cannot be created here. `name` identifies the versions.
pub fn python(name: &str, packages: &[&str]) -> Option<PathBuf> {
    let made = cache().and_then(|cache| make_python(&cache.join(format!("python-{name}")), packages));
    match made {
        Ok(python) => Some(python),
        Err(reason) => {
            missing(&format!(
                "{} could not be installed for Python: {reason}",
                packages.join(", ")
            ));
            None
        }
    }
}

fn make_python(folder: &Path, packages: &[&str]) -> Result<PathBuf, String> {
    let python = folder.join("bin/python");
    if python.exists() {
        return Ok(python);
    }
    // Created in a folder next to its place and moved there when it is complete. `pip` runs as a module of the
    // environment's interpreter, so that nothing depends on the folder's first name.
    let unfinished = folder.with_extension(Uuid::new_v4().simple().to_string());
    let made = run(Command::new("python3").args(["-m", "venv"]).arg(&unfinished)).and_then(|()| {
        run(Command::new(unfinished.join("bin/python"))
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
            .args(packages))
    });
    // Another process may have finished first. Its result is just as good.
    if made.is_err() || std::fs::rename(&unfinished, folder).is_err() {
        let _ = std::fs::remove_dir_all(&unfinished);
    }
    made.map(|()| python)
}

/// The `node_modules` with the packages that a folder locks, made once for each lock; `None` when it cannot be made here.
pub fn npm(name: &str, locked: &Path) -> Option<PathBuf> {
    match cache().and_then(|cache| make_npm(&cache, name, locked)) {
        Ok(modules) => Some(modules),
        Err(reason) => {
            missing(&format!("{name} could not be installed for Node.js: {reason}"));
            None
        }
    }
}

fn make_npm(cache: &Path, name: &str, locked: &Path) -> Result<PathBuf, String> {
    let lock = std::fs::read(locked.join("package-lock.json")).map_err(|error| error.to_string())?;
    let version = Sha256::digest(&lock)[..8]
        .iter()
        .fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    let folder = cache.join(format!("npm-{name}-{version:016x}"));
    if !folder.exists() {
        let unfinished = folder.with_extension(Uuid::new_v4().simple().to_string());
        std::fs::create_dir_all(&unfinished).map_err(|error| error.to_string())?;
        for file in ["package.json", "package-lock.json"] {
            std::fs::copy(locked.join(file), unfinished.join(file)).map_err(|error| error.to_string())?;
        }
        let made = run(Command::new("npm")
            .args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"])
            .current_dir(&unfinished));
        // Another process may have been faster. Its result is as good.
        if made.is_err() || std::fs::rename(&unfinished, &folder).is_err() {
            let _ = std::fs::remove_dir_all(&unfinished);
        }
        made?;
    }
    Ok(folder.join("node_modules"))
}

/// A program of a Debian package: the installed one, or one unpacked in the cache. Nothing is installed, because the
/// package would start a server. `None` if it is not available.
pub fn debian(package: &str, path: &str) -> Option<PathBuf> {
    let installed = Path::new("/").join(path);
    if installed.exists() {
        return Some(installed);
    }
    match cache().and_then(|cache| unpack(&cache.join(format!("debian-{package}")), package, path)) {
        Ok(program) => Some(program),
        Err(reason) => {
            missing(&format!("{package} could not be had from Debian: {reason}"));
            None
        }
    }
}

fn unpack(folder: &Path, package: &str, path: &str) -> Result<PathBuf, String> {
    let program = folder.join(path);
    if program.exists() {
        return Ok(program);
    }
    let unfinished = folder.with_extension(Uuid::new_v4().simple().to_string());
    std::fs::create_dir_all(&unfinished).map_err(|error| error.to_string())?;
    let download = || {
        run(Command::new("apt-get")
            .args(["download", package])
            .current_dir(&unfinished))
    };
    let unpacked = download()
        // The package lists may be missing or out of date.
        .or_else(|_| run(Command::new("apt-get").arg("update")).and_then(|()| download()))
        .and_then(|()| {
            let mut entries = std::fs::read_dir(&unfinished).map_err(|error| error.to_string())?;
            let file = entries.next().ok_or("no package came")?;
            let file = file.map_err(|error| error.to_string())?.path();
            run(Command::new("dpkg-deb").arg("-x").arg(file).arg(&unfinished))
        });
    // Another process may have finished first. Its result is just as good.
    if unpacked.is_err() || std::fs::rename(&unfinished, folder).is_err() {
        let _ = std::fs::remove_dir_all(&unfinished);
    }
    unpacked.map(|()| program)
}
