#![no_main]

use libfuzzer_sys::fuzz_target;
use stageset::manifest::yaml::{self, Mode};

fuzz_target!(|data: &[u8]| {
    for mode in [Mode::Kustomize, Mode::Kubectl] {
        let Ok(values) = yaml::load(data, "fuzz.yaml", mode) else { continue };
        for value in values {
            let text = yaml::to_string(&value).expect("what was read can be written");
            let again = yaml::load(text.as_bytes(), "again.yaml", mode).expect("what was written can be read");
            if !value.is_null() {
                assert_eq!(again, [value]);
            }
        }
    }
});
