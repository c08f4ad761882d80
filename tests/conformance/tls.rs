//! Encrypted connections: certificates made on the spot, and peers that have none, or others.

use std::path::{Path, PathBuf};

use hicached::wire::tcp::{Tcp, TcpSettings, TlsSettings};
use hicached::wire::{Cause, PushEnd};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use crate::world::{Plan, Scratch, World, until};

/// Who signs the certificates of one deployment.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    path: PathBuf,
}

impl Authority {
    /// One of its own, whose certificate is written into `folder` under `name`.
    pub(crate) fn new(folder: &Path, name: &str) -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let path = folder.join(format!("{name}.pem"));
        std::fs::write(&path, params.self_signed(&key).expect("a certificate").pem()).expect("a file");
        Self { issuer: Issuer::new(params, key), path }
    }

    /// Settings of a rank that peers know as `host`.
    pub(crate) fn settings(&self, host: &str) -> TlsSettings {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![host.to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let path = |what: &str| self.path.with_extension(format!("{host}.{what}.pem"));
        std::fs::write(path("certificate"), certificate.pem()).expect("a file");
        std::fs::write(path("key"), key.serialize_pem()).expect("a file");
        TlsSettings { certificate: path("certificate"), key: path("key"), authority: self.path.clone() }
    }
}

/// The backend with these certificates, or without any.
pub(crate) fn backend(tls: Option<TlsSettings>) -> Tcp {
    Tcp::new(TcpSettings { tls, streams: 1, ..TcpSettings::default() }).expect("sound settings")
}

#[test]
fn nothing_lands_from_a_peer_without_a_certificate_of_the_authority() {
    let folder = Scratch::new();
    let (ours, theirs) = (Authority::new(&folder.0, "ours"), Authority::new(&folder.0, "theirs"));
    let both = TlsSettings { authority: ours.settings(HOST).authority, ..theirs.settings(HOST) };
    // What a peer that is refused hears of it depends on whether it writes or reads next.
    let rows = [
        ("no encryption", backend(None), "broke"),
        ("a certificate of another authority", backend(Some(both)), "broke"),
        ("an authority that has not signed ours", backend(Some(theirs.settings(HOST))), "UnknownIssuer"),
    ];
    for (who, peer, said) in rows {
        let mut world = World::new(&backend(Some(ours.settings(HOST))), 0, PAGES);
        world.add_sender(&peer);
        world.add_sender(&backend(Some(ours.settings(HOST))));
        let plan = Plan::contiguous(&[1, 0, 1, 1]);
        world.compute(&plan, 0..u32::MAX);
        let grant = world.grant(&plan).expect("a grant");
        match world.push(world.order(&plan, &grant, 0)).expect("an end") {
            (PushEnd::Failed(cause @ (Cause::Broken { .. } | Cause::Unreachable { .. })), _) => {
                assert!(cause.to_string().contains(said), "{who}: {cause}");
            }
            other => panic!("{who}: {other:?}"),
        }
        world.is_untouched().expect(who);
        until("a broken connection", || world.landing.figures().broken > 0).expect(who);
        // Whoever has one goes on.
        let (end, _) = world.push(world.order(&plan, &grant, 1)).expect("an end");
        assert_eq!(end, PushEnd::Complete, "{who}");
        let owners = world.landing.report(plan.name).expect("a report").owners;
        assert_eq!(owners, [1, hicached::wire::NOBODY, 1, 1], "{who}");
    }
}

#[test]
fn a_certificate_of_another_host_is_refused_by_the_sender() {
    let folder = Scratch::new();
    let authority = Authority::new(&folder.0, "ours");
    let mut world = World::new(&backend(Some(authority.settings("decode-7.example"))), 0, PAGES);
    world.add_sender(&backend(Some(authority.settings(HOST))));
    let plan = Plan::contiguous(&[0, 0]);
    world.compute(&plan, 0..u32::MAX);
    let grant = world.grant(&plan).expect("a grant");
    match world.push(world.order(&plan, &grant, 0)).expect("an end") {
        (PushEnd::Failed(Cause::Unreachable { error, .. }), _) => {
            assert!(error.contains("decode-7.example"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    world.is_untouched().expect("nothing landed");
}

#[test]
fn a_sender_that_encrypts_fails_where_the_landing_does_not() {
    let folder = Scratch::new();
    let authority = Authority::new(&folder.0, "ours");
    let mut world = World::new(&backend(None), 0, PAGES);
    world.add_sender(&backend(Some(authority.settings(HOST))));
    let plan = Plan::contiguous(&[0, 0]);
    world.compute(&plan, 0..u32::MAX);
    let grant = world.grant(&plan).expect("a grant");
    match world.push(world.order(&plan, &grant, 0)).expect("an end") {
        (PushEnd::Failed(Cause::Unreachable { .. }), _) => {}
        other => panic!("{other:?}"),
    }
    world.is_untouched().expect("nothing landed");
    until("a broken connection", || world.landing.figures().broken > 0).expect("counted");
}

#[test]
fn a_key_of_another_certificate_is_refused_at_the_start() {
    let folder = Scratch::new();
    let authority = Authority::new(&folder.0, "ours");
    let tls = TlsSettings { key: authority.settings("another.example").key, ..authority.settings(HOST) };
    let faults = Tcp::new(TcpSettings { tls: Some(tls), ..TcpSettings::default() }).expect_err("two halves");
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(faults[0].to_string().contains("transfer.tcp.tls.certificate"), "{}", faults[0]);
}

pub(crate) const HOST: &str = "127.0.0.1";
const PAGES: u32 = 8;
