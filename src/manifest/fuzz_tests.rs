//! The fuzz targets of `hack/fuzz` as property tests: no panic on any input, and what is read can be written and
//! read again.

use proptest::prelude::*;

use super::yaml::Mode;
use super::*;

/// Pieces that make YAML, kustomizations and objects more often than chance would.
const PIECES: [&str; 48] = [
    "a",
    "b: ",
    "- ",
    "\n",
    "\n  ",
    "\n    ",
    "{",
    "}",
    "[",
    "]",
    ", ",
    ": ",
    "\"",
    "'",
    "|",
    ">",
    "&x ",
    "*x",
    "<<: ",
    "!!int ",
    "!!binary ",
    "---\n",
    "# c\n",
    "~",
    "null",
    "0644",
    "1e3",
    "2001-01-01",
    "apiVersion: v1\n",
    "kind: ConfigMap\n",
    "metadata:\n  name: a\n",
    "resources:\n- resource.yaml\n",
    "namePrefix: p-\n",
    "namespace: n\n",
    "patches:\n- path: patch.yaml\n",
    "  target:\n    kind: .*\n",
    "- op: add\n  path: /data\n  value: x\n",
    "$patch: delete\n",
    "data:\n  k: v\n",
    "items:\n",
    "kind: List\n",
    "images:\n- name: x\n",
    "configMapGenerator:\n- name: g\n",
    "replacements:\n- source: {kind: ConfigMap}\n  targets:\n  - select: {kind: ConfigMap}\n",
    "\t",
    "é",
    "\u{2028}",
    "\\",
];

fn text() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(PIECES.to_vec()), 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn what_is_read_can_be_written_and_read(text in text()) {
        for mode in [Mode::Kustomize, Mode::Kubectl] {
            for value in yaml::load(text.as_bytes(), "f", mode).unwrap_or_default() {
                let written = yaml::to_string(&value).unwrap();
                let again = yaml::load(written.as_bytes(), "again", mode);
                prop_assert_eq!(again, Ok(vec![value]), "{}", written);
            }
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = yaml::load(&bytes, "f", Mode::Kustomize);
        let _ = yaml::load(&bytes, "f", Mode::Kubectl);
    }

    #[test]
    fn any_files_build_or_are_refused(kustomization in text(), resource in text(), patch in text()) {
        let files = [("kustomization.yaml", kustomization), ("resource.yaml", resource), ("patch.yaml", patch)];
        let tree = FileTree::from_files(files).unwrap();
        let _ = build(&tree, "", &BuildOptions::default());
        let _ = build_kustomization(&tree, "", Order::Legacy);
    }
}
