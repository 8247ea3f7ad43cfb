//! Real Flux sources: a Git repository, an OCI artifact and a bucket, each with its source-controller object.

use std::{fs, path::Path, process::Command};

use serde_json::json;

use super::{World, objects, process};

/// A Git repository on the control plane's git server.
pub struct GitRepo {
    work: std::path::PathBuf,
    pub url: String,
}

impl GitRepo {
    /// An empty repository of this world's own.
    pub async fn create(world: &World, name: &str) -> Self {
        let plane = world.cluster.plane;
        let unique = format!("{}-{name}.git", world.namespace);
        let bare = Path::new(plane.var("TESTENV_GIT_ROOT")).join(&unique);
        let work = world.scratch(&format!("git-{name}"));
        git(
            &work,
            &["init", "-q", "--bare", "-b", "main", &bare.display().to_string()],
        );
        git(&work, &["init", "-q", "-b", "main", "."]);
        git(&work, &["remote", "add", "origin", &bare.display().to_string()]);
        Self {
            work,
            url: format!("{}/{unique}", plane.var("TESTENV_GIT_URL").trim_end_matches('/')),
        }
    }

    /// Replaces the content with these files and pushes; gives the revision Flux will show.
    pub fn commit(&self, files: &[(&str, &str)]) -> String {
        for entry in fs::read_dir(&self.work).expect("the work tree").flatten() {
            if entry.file_name() != ".git" {
                let path = entry.path();
                let removed = if path.is_dir() {
                    fs::remove_dir_all(&path)
                } else {
                    fs::remove_file(&path)
                };
                removed.expect("an old file is removed");
            }
        }
        write_files(&self.work, files);
        git(&self.work, &["add", "-A"]);
        git(
            &self.work,
            &["commit", "-q", "--allow-empty", "-m", "Change the application"],
        );
        git(&self.work, &["push", "-q", "origin", "HEAD:main"]);
        format!("main@sha1:{}", git(&self.work, &["rev-parse", "HEAD"]).trim())
    }

    /// The GitRepository object; a short interval makes source-controller find commits by itself.
    pub async fn source(&self, world: &World, name: &str) {
        let object = json!({
            "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "GitRepository",
            "metadata": { "name": name, "namespace": world.namespace },
            "spec": { "interval": "1h", "url": self.url, "ref": { "branch": "main" } },
        });
        world.cluster.apply(&object, &world.namespace).await;
    }
}

/// Pushes a folder of files to the OCI registry and gives the reference without tag.
pub async fn push_oci(world: &World, repository: &str, tag: &str, files: &[(&str, &str)]) -> String {
    let plane = world.cluster.plane;
    let folder = world.scratch(&format!("oci-{repository}-{tag}-{:08x}", rand::random::<u32>()));
    write_files(&folder, files);
    let path = format!("{}/{}/{repository}", plane.var("TESTENV_OCI_ADDR"), world.namespace);
    let mut push = plane.tool("ocipush");
    push.arg(format!("{path}:{tag}")).arg(&folder);
    process::run(&mut push).unwrap_or_else(|e| panic!("pushing an OCI artifact: {e}"));
    format!("oci://{path}")
}

/// The OCIRepository object for a tag.
pub async fn oci_source(world: &World, name: &str, url: &str, tag: &str) {
    let object = json!({
        "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "OCIRepository",
        "metadata": { "name": name, "namespace": world.namespace },
        "spec": { "interval": "1h", "url": url, "insecure": true, "ref": { "tag": tag } },
    });
    world.cluster.apply(&object, &world.namespace).await;
}

/// Makes a bucket hold exactly these files; gives its name.
pub async fn fill_bucket(world: &World, name: &str, files: &[(&str, &str)]) -> String {
    let bucket = format!("{}-{name}", world.namespace);
    let folder = world.scratch(&format!("s3-{name}-{:08x}", rand::random::<u32>()));
    write_files(&folder, files);
    let mut put = world.cluster.plane.tool("s3put");
    put.args(["-prune", &bucket]).arg(&folder);
    process::run(&mut put).unwrap_or_else(|e| panic!("filling a bucket: {e}"));
    bucket
}

/// The Bucket object with its credentials.
pub async fn bucket_source(world: &World, name: &str, bucket: &str) {
    let plane = world.cluster.plane;
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": format!("{name}-s3"), "namespace": world.namespace },
        "stringData": { "accesskey": plane.var("TESTENV_S3_ACCESS_KEY"), "secretkey": plane.var("TESTENV_S3_SECRET_KEY") },
    });
    world.cluster.apply(&secret, &world.namespace).await;
    let endpoint = plane.var("TESTENV_S3_ENDPOINT").trim_start_matches("http://");
    let object = json!({
        "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "Bucket",
        "metadata": { "name": name, "namespace": world.namespace },
        "spec": { "interval": "1h", "provider": "generic", "bucketName": bucket, "endpoint": endpoint, "insecure": true,
                  "region": plane.var("TESTENV_S3_REGION"), "secretRef": { "name": format!("{name}-s3") } },
    });
    world.cluster.apply(&object, &world.namespace).await;
}

/// Asks source-controller to look again now, and waits until the source has another revision than before.
pub async fn refresh(world: &World, kind: &objects::Kind, name: &str, before: &str) -> String {
    let token = uuid::Uuid::new_v4().to_string();
    world
        .cluster
        .annotate(
            kind,
            &world.namespace,
            name,
            "reconcile.fluxcd.io/requestedAt",
            Some(&token),
        )
        .await;
    revision(world, kind, name, |r| r != before).await
}

/// Waits until a source is ready and gives its revision.
pub async fn ready(world: &World, kind: &objects::Kind, name: &str) -> String {
    revision(world, kind, name, |_| true).await
}

async fn revision(world: &World, kind: &objects::Kind, name: &str, good: impl Fn(&str) -> bool) -> String {
    let source = world
        .cluster
        .until(kind, &world.namespace, name, "ready with an artifact", |source| {
            let ready =
                super::stageset::condition_of(&source["status"], "Ready").is_some_and(|c| c["status"] == "True");
            ready && source["status"]["artifact"]["revision"].as_str().is_some_and(&good)
        })
        .await;
    source["status"]["artifact"]["revision"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

fn write_files(folder: &Path, files: &[(&str, &str)]) {
    for (path, content) in files {
        let file = folder.join(path);
        fs::create_dir_all(file.parent().expect("a file has a folder")).expect("a folder");
        fs::write(file, content).expect("a file");
    }
}

fn git(folder: &Path, args: &[&str]) -> String {
    let mut command = Command::new("git");
    command
        .current_dir(folder)
        .args([
            "-c",
            "user.name=Test",
            "-c",
            "user.email=test@example.com",
            "-c",
            "commit.gpgsign=false",
        ])
        .args(args)
        .env_remove("GIT_DIR");
    process::run(&mut command).unwrap_or_else(|e| panic!("git: {e}"))
}
