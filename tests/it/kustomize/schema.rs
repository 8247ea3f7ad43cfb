//! The checked-in table of merge lists is what the pinned kustomize embeds.

use std::path::Path;
use std::process::Command;

use stageset::manifest::kustomize::schema::TABLE;

#[test]
fn the_table_is_that_of_the_pinned_version() {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("hack/diff");
    let output = Command::new("go")
        .args(["run", "./schema"])
        .current_dir(program)
        .output()
        .expect("go is needed to compare the schema table: install Go, then run ./hack/test");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(
        String::from_utf8_lossy(&output.stdout) == TABLE,
        "src/manifest/kustomize/schema.txt is stale: (cd hack/diff && go run ./schema > ../../src/manifest/kustomize/schema.txt)"
    );
}
