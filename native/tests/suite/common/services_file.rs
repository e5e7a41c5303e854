//! Services files of single tests.

use std::path::{Path, PathBuf};

use uuid::Uuid;

/// A services file with these contents; deleted when dropped.
pub struct ServicesFile(PathBuf);

impl ServicesFile {
    pub fn new(text: &str) -> Self {
        let file = std::env::temp_dir().join(format!("weir-{}.toml", Uuid::new_v4()));
        std::fs::write(&file, text).unwrap();
        Self(file)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn name(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for ServicesFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A service of kind `test:NAME` with this meter, two workers in each lane, and these further keys.
pub fn service(name: &str, meter: &str, more: &str) -> String {
    let workers = name.to_uppercase();
    format!(
        "[[service]]\nname = '{name}'\nevent_type = '{meter}'\nkind = 'test:{name}'\nworkers = '{workers}'\n\
         priority_workers = 2\ndefault_workers = 2\nscheduled_workers = 1\n{more}\n"
    )
}
