use std::time::Duration;

use futures::future::join_all;

use super::super::digest::Algorithm;
use super::super::testing::{Server, archive, artifact, client};
use super::*;

fn cache(budget: u64) -> Cache {
    Cache::new(client(true), Limits::default(), budget)
}

fn digest_of(content: &[u8]) -> String {
    Digest::compute(Algorithm::Sha256, content).to_string()
}

/// Incompressible text, so that sizes are what they seem.
fn noise(seed: u64, length: usize) -> String {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            char::from(b'!' + u8::try_from(state % 90).expect("small"))
        })
        .collect()
}

fn counts(cache: &Cache) -> (u64, u64) {
    (cache.counters().hits(), cache.counters().misses())
}

/// Rules: run B19 cache
#[tokio::test]
async fn a_second_use_costs_no_request() {
    let content = archive(&[("a.yaml", "kind: A")]);
    let server = Server::start(&[("/a", &content)]).await;
    let cache = cache(DEFAULT_BUDGET);
    let artifact = artifact(&server.url("/a"), &digest_of(&content));
    let first = cache.tree(&artifact).await.expect("a tree");
    let second = cache.tree(&artifact).await.expect("a tree");
    assert_eq!(first.get("a.yaml").expect("a file"), "kind: A");
    assert!(Arc::ptr_eq(&first, &second), "a tree in use is shared");
    drop((first, second));
    assert!(cache.tree(&artifact).await.is_ok(), "unpacked anew");
    assert_eq!(server.requests(), 1);
    assert_eq!(counts(&cache), (2, 1));
    let digest = Digest::parse(&artifact.digest).expect("a digest");
    assert_eq!(cache.bytes(&digest).await.expect("bytes"), content);
}

#[tokio::test]
async fn content_is_shared_across_urls_and_spellings_of_its_digest() {
    let content = archive(&[("a.yaml", "x")]);
    let server = Server::start(&[("/a", &content), ("/b", &content)]).await;
    let cache = cache(DEFAULT_BUDGET);
    let digest = digest_of(&content);
    for (path, digest) in [("/a", digest.clone()), ("/b", digest.to_ascii_uppercase())] {
        let artifact = artifact(&server.url(path), &digest);
        assert!(cache.tree(&artifact).await.is_ok());
    }
    assert_eq!(server.requests(), 1);
}

#[tokio::test]
async fn simultaneous_uses_share_one_download_and_one_tree() {
    let content = archive(&[("a.yaml", "x")]);
    let server = Server::slow(&[("/a", &content)], Duration::from_millis(100)).await;
    for budget in [DEFAULT_BUDGET, 0] {
        let before = server.requests();
        let cache = cache(budget);
        let artifact = artifact(&server.url("/a"), &digest_of(&content));
        let trees = join_all((0..50).map(|_| cache.tree(&artifact))).await;
        let first = trees[0].as_ref().expect("a tree");
        for tree in &trees {
            assert!(Arc::ptr_eq(tree.as_ref().expect("a tree"), first));
        }
        assert_eq!(server.requests() - before, 1, "budget {budget}");
        assert_eq!(counts(&cache), (49, 1));
    }
}

/// Six artifacts of about 4 KB each, and a cache with room for three.
async fn crowded() -> (Server, Vec<Artifact>, Cache, u64) {
    let contents: Vec<Vec<u8>> = (0..6).map(|n| archive(&[("a.yaml", &noise(n, 4000))])).collect();
    let paths: Vec<String> = (0..6).map(|n| format!("/{n}")).collect();
    let site: Vec<(&str, &[u8])> = paths
        .iter()
        .map(String::as_str)
        .zip(contents.iter().map(Vec::as_slice))
        .collect();
    let server = Server::start(&site).await;
    let artifacts = site
        .iter()
        .map(|(path, content)| artifact(&server.url(path), &digest_of(content)))
        .collect();
    let budget = 3 * (contents[0].len() as u64 + 1000);
    (server, artifacts, cache(budget), budget)
}

async fn use_settled(cache: &Cache, artifact: &Artifact) {
    cache.tree(artifact).await.expect("a tree");
    cache.store.run_pending_tasks().await;
}

#[tokio::test]
async fn the_budget_holds_and_evicted_content_is_fetched_again() {
    let (server, artifacts, cache, budget) = crowded().await;
    for artifact in &artifacts {
        use_settled(&cache, artifact).await;
        use_settled(&cache, &artifacts[0]).await;
        assert!(cache.weight() <= budget, "{}", cache.weight());
    }
    assert!(cache.weight() > 0);
    assert_eq!(server.requests(), 6, "the one in constant use was never evicted");
    assert_eq!(cache.counters().evictions(), 3);
    use_settled(&cache, &artifacts[1]).await;
    assert_eq!(server.requests(), 7);
}

#[tokio::test]
async fn a_newcomer_displaces_what_was_used_often_but_long_ago() {
    let (server, artifacts, cache, _) = crowded().await;
    for _ in 0..20 {
        for artifact in &artifacts[..3] {
            use_settled(&cache, artifact).await;
        }
    }
    for artifact in &artifacts[3..] {
        use_settled(&cache, artifact).await;
    }
    assert_eq!(server.requests(), 6);
    for artifact in &artifacts[3..] {
        use_settled(&cache, artifact).await;
    }
    assert_eq!(server.requests(), 6);
}

#[tokio::test]
async fn content_larger_than_the_budget_is_served_but_not_kept() {
    let content = archive(&[("a.yaml", &noise(1, 4000))]);
    let server = Server::start(&[("/a", &content)]).await;
    let cache = cache(1000);
    let artifact = artifact(&server.url("/a"), &digest_of(&content));
    for _ in 0..2 {
        assert!(cache.tree(&artifact).await.is_ok());
        cache.store.run_pending_tasks().await;
        assert_eq!(cache.weight(), 0);
    }
    assert_eq!(server.requests(), 2);
}

#[tokio::test]
async fn failures_are_not_remembered() {
    let content = archive(&[("a.yaml", "x")]);
    let server = Server::start(&[("/good", &content), ("/bad", b"other")]).await;
    let cache = cache(DEFAULT_BUDGET);
    let digest = digest_of(&content);
    let use_of = async |path: &str| cache.tree(&artifact(&server.url(path), &digest)).await;
    assert!(matches!(use_of("/missing").await, Err(Error::Fetch { .. })));
    assert!(matches!(use_of("/bad").await, Err(Error::DigestMismatch { .. })));
    assert!(matches!(use_of("/bad").await, Err(Error::DigestMismatch { .. })));
    assert_eq!(server.requests(), 3);
    assert!(use_of("/good").await.is_ok());
    assert_eq!(counts(&cache), (0, 4));
}

#[tokio::test]
async fn one_sources_dead_server_does_not_fail_anothers() {
    let content = archive(&[("a.yaml", "x")]);
    let delay = Duration::from_millis(100);
    let server = Server::slow(&[("/good", &content)], delay).await;
    let cache = cache(DEFAULT_BUDGET);
    let digest = digest_of(&content);
    let mut bad = artifact(&server.url("/bad"), &digest);
    let good = artifact(&server.url("/good"), &digest);
    let (first, second) = tokio::join!(cache.tree(&bad), cache.tree(&good));
    assert!(matches!(first, Err(Error::Fetch { .. })));
    assert!(second.is_ok());

    // Those who wait for a download that fails are told so about their own source.
    cache.store.invalidate_all();
    let other = bad.clone();
    bad.name = "mine".to_owned();
    let (_, mine) = tokio::join!(cache.tree(&other), cache.tree(&bad));
    assert!(mine.expect_err("fails").to_string().contains("\"apps/mine\""));
}

#[tokio::test]
async fn a_cancelled_download_does_not_strand_those_who_wait() {
    let content = archive(&[("a.yaml", "x")]);
    let server = Server::slow(&[("/a", &content)], Duration::from_millis(200)).await;
    let cache = cache(DEFAULT_BUDGET);
    let artifact = artifact(&server.url("/a"), &digest_of(&content));
    let loader = {
        let (cache, artifact) = (cache.clone(), artifact.clone());
        tokio::spawn(async move { cache.tree(&artifact).await })
    };
    while server.requests() == 0 {
        tokio::task::yield_now().await;
    }
    let waiter = {
        let (cache, artifact) = (cache.clone(), artifact.clone());
        tokio::spawn(async move { cache.tree(&artifact).await })
    };
    tokio::task::yield_now().await;
    loader.abort();
    let tree = tokio::time::timeout(Duration::from_secs(10), waiter).await;
    assert!(tree.expect("in time").expect("no panic").is_ok());
}

/// Rules: run 12 url
#[tokio::test]
async fn cached_content_does_not_open_a_refused_url() {
    let content = archive(&[("a.yaml", "x")]);
    let server = Server::start(&[("/a", &content)]).await;
    let cache = cache(DEFAULT_BUDGET);
    let digest = digest_of(&content);
    assert!(cache.tree(&artifact(&server.url("/a"), &digest)).await.is_ok());
    let error = cache
        .tree(&artifact("http://169.254.169.254/a", &digest))
        .await
        .expect_err("refused");
    assert!(matches!(
        error,
        Error::Fetch {
            error: outbound::Error::Refused { .. },
            ..
        }
    ));
}

#[tokio::test]
async fn a_refused_archive_stays_refused() {
    let content = archive(&[("../evil", "x")]);
    let server = Server::start(&[("/a", &content)]).await;
    let cache = cache(DEFAULT_BUDGET);
    let artifact = artifact(&server.url("/a"), &digest_of(&content));
    for _ in 0..2 {
        let error = cache.tree(&artifact).await.expect_err("refused");
        assert!(matches!(error, Error::Archive { .. }));
    }
    assert_eq!(server.requests(), 1);
}

/// Rules: run 12 turns
#[test]
fn turns_are_those_of_a_host_and_port_whoever_logs_in_there() {
    let server = |url: &str| super::Of::server(url);
    assert_eq!(server("http://a:b@h.example/x"), server("http://c@h.example:80/y"));
    assert_eq!(server("http://h.example./x"), server("http://h.example/x"));
    assert_ne!(server("http://h.example/x"), server("https://h.example/x"));
}
