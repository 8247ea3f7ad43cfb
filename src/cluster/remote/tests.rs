use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rstest::rstest;

use super::error::{RemoteError, SecretKey};
use super::kubeconfig::{Fault, accept};
use crate::outbound::Policy;

/// A certificate and its key, made for these tests alone.
const CERTIFICATE: &str = include_str!("testdata/client.crt");
const KEY: &str = include_str!("testdata/client.key");
/// Values that must never show in a message.
const SECRETS: [&str; 3] = ["hunter2", "/var/run/secrets", "BEGIN"];

fn base64(text: &str) -> String {
    STANDARD.encode(text)
}

/// A harmless kubeconfig with lines added to its cluster and its user.
fn with(cluster: &str, user: &str) -> String {
    kubeconfig(
        &format!("server: https://api.example.com:6443\n{cluster}"),
        &format!("token: hunter2\n{user}"),
    )
}

fn kubeconfig(cluster: &str, user: &str) -> String {
    let indent = |text: &str| text.lines().map(|l| format!("    {l}\n")).collect::<String>();
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: main\ncontexts:\n- name: main\n  context: {{cluster: c, user: u}}\n\
         clusters:\n- name: c\n  cluster:\n{}users:\n- name: u\n  user:\n{}",
        indent(cluster),
        indent(user)
    )
}

fn refused(text: &str) -> Fault {
    let fault = accept(text, &Policy::default()).expect_err("must be refused");
    let message = fault.to_string();
    for secret in SECRETS {
        assert!(!message.contains(secret), "{message:?} tells {secret:?}");
    }
    assert!(message.len() < 250, "{message}");
    fault
}

/// Rules: run 11.3 self-contained, run B15, contract 17.35
#[rstest]
#[case::program(
    "",
    "exec: {apiVersion: client.authentication.k8s.io/v1, command: sh, args: [-c, hunter2]}",
    "users[0].user.exec"
)]
#[case::empty_program("", "exec: {}", "users[0].user.exec")]
#[case::plugin(
    "",
    "auth-provider: {name: gcp, config: {cmd-path: /bin/hunter2}}",
    "users[0].user.auth-provider"
)]
#[case::our_token(
    "",
    "tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token",
    "users[0].user.tokenFile"
)]
#[case::client_certificate(
    "",
    "client-certificate: /var/run/secrets/tls.crt",
    "users[0].user.client-certificate"
)]
#[case::client_key("", "client-key: /var/run/secrets/tls.key", "users[0].user.client-key")]
#[case::certificate_authority(
    "certificate-authority: /var/run/secrets/ca.crt",
    "",
    "clusters[0].cluster.certificate-authority"
)]
#[case::no_verification("insecure-skip-tls-verify: true", "", "clusters[0].cluster.insecure-skip-tls-verify")]
#[case::proxy("proxy-url: http://169.254.169.254/hunter2", "", "clusters[0].cluster.proxy-url")]
#[case::socks("proxy-url: socks5://hunter2@10.0.0.1", "", "clusters[0].cluster.proxy-url")]
#[case::another_user("", "as: system:admin", "users[0].user.as")]
#[case::another_uid("", "as-uid: hunter2", "users[0].user.as-uid")]
#[case::groups("", "as-groups: ['system:masters']", "users[0].user.as-groups")]
#[case::extra("", "as-user-extra: {scopes: [hunter2]}", "users[0].user.as-user-extra")]
#[case::header_injection(
    "",
    "password: x\n\"token\": \"hunter2\\r\\nImpersonate-User: system:admin\"",
    "the value"
)]
#[case::server_name("tls-server-name: 'hunter2 x'", "", "clusters[0].cluster.tls-server-name")]
#[case::authority_not_base64(
    "certificate-authority-data: '%hunter2%'",
    "",
    "clusters[0].cluster.certificate-authority-data"
)]
#[case::key_without_certificate("", "client-key-data: aHVudGVyMg==", "users[0].user.client-certificate-data")]
#[case::certificate_without_key("", "client-certificate-data: aHVudGVyMg==", "users[0].user.client-key-data")]
fn hostile_fields_are_refused_by_name(#[case] cluster: &str, #[case] user: &str, #[case] field: &str) {
    let fault = refused(&with(cluster, user));
    assert_eq!(fault.field, field, "{fault}");
}

/// Rules: decisions 7 servers
#[rstest]
#[case::metadata("https://169.254.169.254/latest/hunter2", "link-local")]
#[case::metadata_by_number("https://2852039166/", "link-local")]
#[case::metadata_in_hexadecimal("https://0xa9fea9fe/", "link-local")]
#[case::metadata_mapped("https://[::ffff:169.254.169.254]:443", "link-local")]
#[case::metadata_by_nat64("https://[64:ff9b::a9fe:a9fe]", "embeds")]
#[case::alibaba("https://100.100.100.200", "metadata")]
#[case::link_local("https://[fe80::1]:6443", "link-local")]
#[case::loopback("https://127.0.0.1:6443", "loopback")]
#[case::loopback_short("https://127.1:6443", "loopback")]
#[case::loopback_six("https://[::1]:6443", "loopback")]
#[case::localhost("https://LOCALHOST:6443", "own machine")]
#[case::below_localhost("https://api.localhost.", "own machine")]
#[case::unspecified("https://0.0.0.0:6443", "unspecified")]
#[case::clear_text("http://api.example.com", "not https")]
#[case::file("file:///var/run/secrets/hunter2", "cannot be contacted")]
#[case::unix("unix:///run/docker.sock", "cannot be contacted")]
#[case::userinfo("https://admin:hunter2@api.example.com", "more than an address")]
#[case::query("https://api.example.com/?x=hunter2", "more than an address")]
#[case::nonsense("hunter2", "no address")]
fn hostile_servers_are_refused(#[case] server: &str, #[case] why: &str) {
    let fault = refused(&kubeconfig(&format!("server: '{server}'"), "token: hunter2"));
    assert_eq!(fault.field, "clusters[0].cluster.server");
    assert!(fault.why.contains(why), "{fault}");
}

/// Rules: run 11.3 missing
#[rstest]
#[case::not_yaml("hunter2: [", "the value")]
#[case::a_list("- hunter2", "the value")]
#[case::a_word("hunter2", "the value")]
#[case::empty("{}", "current-context")]
#[case::no_server(&kubeconfig("{}", "token: hunter2"), "clusters[0].cluster.server")]
#[case::no_credentials(&kubeconfig("server: https://api.example.com", "{}"), "users[0].user")]
#[case::anonymous_by_empty_token(&kubeconfig("server: https://api.example.com", "token: ''"), "users[0].user")]
#[case::no_such_context("current-context: x", "current-context")]
#[case::wrong_type(&with("insecure-skip-tls-verify: hunter2", ""), "the value")]
fn what_is_no_kubeconfig_is_refused(#[case] text: &str, #[case] field: &str) {
    assert_eq!(refused(text).field, field);
}

#[test]
fn a_token_with_a_line_break_never_becomes_a_header() {
    let text = kubeconfig(
        "server: https://api.example.com",
        "\"token\": \"hunter2\\r\\nImpersonate-User: system:admin\"",
    );
    assert_eq!(refused(&text).field, "users[0].user.token");
}

#[test]
fn entries_that_the_context_does_not_use_have_to_be_harmless_too() {
    let text = with("", "").replace(
        "users:\n",
        "users:\n- name: other\n  user: {exec: {command: hunter2}}\n",
    );
    assert_eq!(refused(&text).field, "users[0].user.exec");
}

#[test]
fn two_entries_of_one_name_are_refused() {
    let text = with("", "").replace("users:\n", "users:\n- name: u\n  user: {token: other}\n");
    let fault = refused(&text);
    assert_eq!(fault.field, "contexts[0].context.user");
    assert!(fault.why.contains("two entries"), "{fault}");
}

/// Rules: run B15
#[test]
fn repeated_keys_do_not_hide_a_field() {
    let text = with("", "exec: null\nexec: {command: hunter2}");
    refused(&text);
}

/// Rules: run B15
#[test]
fn aliases_do_not_hide_a_field_and_bombs_do_not_go_off() {
    let text = with("", "")
        .replace("apiVersion: v1", "x: &x {exec: {command: hunter2}}\napiVersion: v1")
        .replace("    token: hunter2\n", "    *x\n");
    assert_eq!(refused(&text).field, "users[0].user.exec");
    let mut bomb = "a0: &a0 [hunter2]\n".to_owned();
    for n in 1..30 {
        let before = format!("*a{}", n - 1);
        bomb.push_str(&format!("a{n}: &a{n} [{}]\n", vec![before; 9].join(",")));
    }
    refused(&format!("{bomb}{}", with("", "")));
}

#[test]
fn a_token_and_an_authority_are_all_that_is_needed() {
    let text = with(
        &format!(
            "certificate-authority-data: {}\ntls-server-name: kubernetes.default.svc",
            base64(CERTIFICATE)
        ),
        "insecure: true\nunknown: /etc/passwd",
    );
    let config = accept(&text, &Policy::default()).expect("harmless");
    assert_eq!(config.cluster_url.to_string(), "https://api.example.com:6443/");
    assert_eq!(config.tls_server_name.as_deref(), Some("kubernetes.default.svc"));
    assert_eq!(config.root_cert.map(|c| c.len()), Some(1));
    assert!(!config.accept_invalid_certs && config.proxy_url.is_none() && config.root_cert_file.is_none());
    let auth = config.auth_info;
    assert!(auth.token.is_some() && auth.token_file.is_none() && auth.exec.is_none() && auth.impersonate.is_none());
    assert!(auth.auth_provider.is_none() && auth.client_certificate.is_none() && auth.client_key.is_none());
}

#[test]
fn json_trailing_newlines_and_wrapped_base64_are_accepted() {
    let wrapped: String = base64(CERTIFICATE)
        .as_bytes()
        .chunks(64)
        .map(|c| String::from_utf8_lossy(c).into_owned() + "\\n")
        .collect();
    let text = format!(
        r#"{{"current-context":"m","contexts":[{{"name":"m","context":{{"cluster":"c","user":"u"}}}}],
        "clusters":[{{"name":"c","cluster":{{"server":"https://10.0.0.1/k8s/clusters/c-1","certificate-authority-data":"{wrapped}"}}}}],
        "users":[{{"name":"u","user":{{"token":"abc\n"}}}}]}}"#
    );
    let config = accept(&text, &Policy::default()).expect("harmless");
    assert_eq!(config.cluster_url.path(), "/k8s/clusters/c-1");
}

#[test]
fn client_certificates_and_passwords_are_accepted() {
    let pair = format!(
        "client-certificate-data: {}\nclient-key-data: {}",
        base64(CERTIFICATE),
        base64(KEY)
    );
    let config = accept(
        &kubeconfig("server: https://api.example.com", &pair),
        &Policy::default(),
    )
    .expect("harmless");
    assert!(config.auth_info.client_certificate_data.is_some());
    let basic = kubeconfig("server: https://api.example.com", "username: admin\npassword: hunter2");
    assert!(
        accept(&basic, &Policy::default())
            .expect("harmless")
            .auth_info
            .password
            .is_some()
    );
    let swapped = format!(
        "client-certificate-data: {}\nclient-key-data: {}",
        base64(KEY),
        base64(CERTIFICATE)
    );
    assert_eq!(
        refused(&kubeconfig("server: https://api.example.com", &swapped)).field,
        "users[0].user.client-certificate-data"
    );
}

#[test]
fn loopback_opens_for_local_development_only() {
    let local = Policy {
        allow_loopback: true,
        allowed_hosts: None,
    };
    for server in [
        "https://127.0.0.1:6443",
        "https://localhost:6443",
        "http://127.0.0.1:8080",
    ] {
        let text = kubeconfig(&format!("server: {server}"), "token: hunter2");
        assert!(accept(&text, &local).is_ok(), "{server}");
        assert!(accept(&text, &Policy::default()).is_err(), "{server}");
    }
    for server in ["https://169.254.169.254", "http://api.example.com", "https://[fe80::1]"] {
        assert!(
            accept(&kubeconfig(&format!("server: '{server}'"), "token: hunter2"), &local).is_err(),
            "{server}"
        );
    }
}

#[test]
fn a_message_names_secret_key_field_and_next_step() {
    let error = RemoteError::Refused {
        secret: SecretKey {
            namespace: "team".into(),
            name: "prod".into(),
            key: "value".into(),
        },
        fault: Box::new(refused(&with("", "exec: {command: hunter2}"))),
    };
    assert_eq!(
        error.to_string(),
        "Secret team/prod, key \"value\": users[0].user.exec runs a program in the controller: put a token, or client-certificate-data and \
         client-key-data, into the kubeconfig"
    );
}

/// Rules: decisions 4 silent
#[test]
fn a_wait_in_vain_is_remembered_for_longer_than_it_took() {
    use std::time::Duration;
    let seconds = |took: u64, silent| super::remembered(Duration::from_secs(took), silent).as_secs();
    assert_eq!(seconds(0, 0), 5);
    assert_eq!(
        [0, 1, 2, 3, 9].map(|silent| seconds(30, silent)),
        [30, 60, 120, 120, 120]
    );
    assert_eq!(seconds(1, 9), 5, "it answers again, if badly");
}
