use super::super::archive::Fault;
use super::super::digest::Algorithm;
use super::super::error::Class;
use super::super::testing::{Server, archive, artifact, client};
use super::*;
use crate::outbound::Error as Outbound;

async fn run(artifact: &Artifact, loopback: bool, limits: &Limits) -> Result<Tree, Error> {
    let expected = digest(artifact)?;
    let bytes = download(&client(loopback), artifact, limits).await?;
    verify(artifact, &expected, &bytes)?;
    unpack(artifact, &bytes, limits)
}

async fn failure(artifact: &Artifact) -> (Error, &'static str, Class) {
    let error = run(artifact, true, &Limits::default()).await.expect_err("must fail");
    let outcome = error.outcome();
    assert_eq!(outcome.operation, Some("fetch artifact"));
    assert!(
        outcome.message.starts_with("artifact of GitRepository \"apps/web\": "),
        "{}",
        outcome.message
    );
    (error, outcome.reason, outcome.class)
}

/// Rules: run B19 digests
#[tokio::test]
async fn every_algorithm_verifies() {
    let content = archive(&[("a.yaml", "kind: A")]);
    let server = Server::start(&[("/a.tar.gz", &content)]).await;
    for algorithm in [
        Algorithm::Sha256,
        Algorithm::Sha384,
        Algorithm::Sha512,
        Algorithm::Blake3,
    ] {
        let digest = Digest::compute(algorithm, &content).to_string();
        for text in [digest.to_ascii_uppercase(), digest] {
            let artifact = artifact(&server.url("/a.tar.gz"), &text);
            let tree = run(&artifact, true, &Limits::default()).await;
            assert_eq!(tree.expect("a tree").get("a.yaml").expect("a file"), "kind: A");
        }
    }
}

#[tokio::test]
async fn other_bytes_than_announced_are_refused_before_unpacking() {
    // Neither content is an archive: reaching the unpacker would be another error.
    let server = Server::start(&[("/a.tar.gz", b"tampered")]).await;
    let announced = Digest::compute(Algorithm::Sha256, b"original").to_string();
    let (error, reason, class) = failure(&artifact(&server.url("/a.tar.gz"), &announced)).await;
    let Error::DigestMismatch { expected, actual, .. } = error else {
        panic!("{error:?}");
    };
    assert_eq!(expected.to_string(), announced);
    assert_eq!(actual, Digest::compute(Algorithm::Sha256, b"tampered"));
    assert_eq!((reason, class), ("StageFailed", Class::Terminal));
}

#[tokio::test]
async fn an_unusable_digest_is_refused_before_the_download() {
    let server = Server::start(&[("/a.tar.gz", b"x")]).await;
    for digest in ["", "md5:d41d8cd98f00b204e9800998ecf8427e", "sha256:zz", "deadbeef"] {
        let (error, reason, class) = failure(&artifact(&server.url("/a.tar.gz"), digest)).await;
        assert!(matches!(error, Error::InvalidDigest { .. }), "{error:?}");
        assert_eq!((reason, class), ("StageFailed", Class::Terminal));
    }
    assert_eq!(server.requests(), 0);
}

#[tokio::test]
async fn what_the_server_lacks_is_tried_again() {
    let server = Server::start(&[]).await;
    let digest = Digest::compute(Algorithm::Sha256, b"x").to_string();
    let (error, reason, class) = failure(&artifact(&server.url("/gone.tar.gz"), &digest)).await;
    assert!(matches!(
        error,
        Error::Fetch {
            error: Outbound::NotFound { .. },
            ..
        }
    ));
    assert_eq!((reason, class), ("StageFailed", Class::Transient));
}

#[tokio::test]
async fn loopback_is_refused_for_good() {
    let server = Server::start(&[("/a.tar.gz", b"x")]).await;
    let digest = Digest::compute(Algorithm::Sha256, b"x").to_string();
    let artifact = artifact(&server.url("/a.tar.gz"), &digest);
    let error = run(&artifact, false, &Limits::default()).await.expect_err("refused");
    let outcome = error.outcome();
    assert_eq!((outcome.reason, outcome.class), ("StageFailed", Class::Terminal));
    assert_eq!(
        outcome.message,
        format!(
            "artifact of GitRepository \"apps/web\": refused to contact {}: 127.0.0.1 is a loopback address",
            server.url("/a.tar.gz")
        )
    );
    assert_eq!(server.requests(), 0);
}

/// Rules: run 12 body, run 12 terminal
#[tokio::test]
async fn the_download_cap_is_inclusive_and_final() {
    let content = archive(&[("a.yaml", "x")]);
    let server = Server::start(&[("/a.tar.gz", &content)]).await;
    let digest = Digest::compute(Algorithm::Sha256, &content).to_string();
    let artifact = artifact(&server.url("/a.tar.gz"), &digest);
    let size = content.len() as u64;
    let limits = |compressed| Limits {
        compressed,
        ..Limits::default()
    };
    assert!(run(&artifact, true, &limits(size)).await.is_ok());
    let error = run(&artifact, true, &limits(size - 1)).await.expect_err("too large");
    assert!(matches!(&error, Error::Fetch { error: Outbound::TooLarge { limit, .. }, .. } if *limit == size - 1));
    assert_eq!(error.outcome().class, Class::Terminal);
}

#[tokio::test]
async fn a_refused_archive_is_final() {
    let traversal = archive(&[("good.yaml", "x"), ("../evil.yaml", "x")]);
    let cases: [(&str, &[u8], Fault); 2] = [
        (
            "/traversal",
            &traversal,
            Fault::Escape {
                path: "../evil.yaml".to_owned(),
            },
        ),
        ("/html", b"<html/>", Fault::NotGzip),
    ];
    for (path, content, expected) in cases {
        let server = Server::start(&[(path, content)]).await;
        let digest = Digest::compute(Algorithm::Sha256, content).to_string();
        let (error, reason, class) = failure(&artifact(&server.url(path), &digest)).await;
        assert!(matches!(error, Error::Archive { fault, .. } if fault == expected));
        assert_eq!((reason, class), ("StageFailed", Class::Terminal));
    }
}
