//! Subjects, which name the holders of quotas.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_policy::subject::Subject;

fuzz_target!(|text: &str| {
    if let Ok(subject) = text.parse::<Subject>() {
        assert!((1..=255).contains(&subject.as_str().len()));
        assert_eq!(subject.as_str().parse().as_ref(), Ok(&subject), "its own text is the same subject");
        if let Some(uuid) = subject.uuid() {
            assert_eq!(subject.as_str(), uuid.to_string());
        } else {
            assert_eq!(subject.as_str(), text);
        }
    }
});
