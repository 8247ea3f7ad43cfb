#![no_main]

use libfuzzer_sys::fuzz_target;
use stageset::manifest::{BuildOptions, FileTree, Order, build, build_kustomization};

// The input is three files, separated by a line of `=`: the kustomization, a resource, a patch.
fuzz_target!(|data: &str| {
    let mut parts = data.splitn(3, "\n=\n");
    let names = ["kustomization.yaml", "resource.yaml", "patch.yaml"];
    let files = names.iter().map(|name| (*name, parts.next().unwrap_or_default().to_owned()));
    let tree = FileTree::from_files(files).expect("the names are clean");
    let _ = build(&tree, "", &BuildOptions::default());
    let _ = build_kustomization(&tree, "", Order::Legacy);
});
