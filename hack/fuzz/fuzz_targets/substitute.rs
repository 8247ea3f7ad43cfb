#![no_main]

use libfuzzer_sys::fuzz_target;
use stageset::manifest::substitute::substitute_text;

fuzz_target!(|data: &str| {
    let variables = [("x", "abcABC123"), ("empty", ""), ("path", "/a/b/c.d")];
    let variables = variables.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    for strict in [true, false] {
        let _ = substitute_text(data, &variables, strict);
    }
});
