//! The table of docs/diagnoses.md: each code of a Decline, when it is sent, and the tests that send and receive it.
//!
//! `TEST_WRITE=1 cargo test --test diagnoses` writes the page anew.

mod source;

use std::collections::BTreeSet;
use std::fmt::Write;

use smcfast::wire::clc::Diagnosis;
use source::{code, files, root, words};

const PAGE: &str = "docs/diagnoses.md";

const HEAD: &str = "\
# Diagnosis codes

Why one end declines the other's handshake: the codes of a CLC Decline, when this version sends each, and the tests that make it
send and receive it. What a user does about a code is in [discovery.md](discovery.md#reasons).

The table is made by `tests/diagnoses.rs`, which fails on a code without a test, and is not written by hand.

| code | name | sent | test that sends it | test that receives it |
|---|---|---|---|---|
";

/// What this end does with a code itself.
enum Sent {
    /// It sends it in this case, and this test makes it do so.
    When(&'static str, &'static str),
    /// It never does, for this reason.
    Never(&'static str),
}

use Sent::{Never, When};

/// Received as any other.
const ANY: &str = "tests/test_assume.py::test_a_decline_of_any_code_is_told";

/// A code, what this end does with it itself, and a test that receives it.
struct Row(Diagnosis, Sent, &'static str);

const ROWS: &[Row] = &[
    Row(Diagnosis::NONE, Never("every Decline has a reason"), ANY),
    Row(
        Diagnosis::OUT_OF_MEMORY,
        When(
            "no memory, file descriptor or queue pair is left for the connection",
            "tests/test_handshake.py::test_a_go_that_finds_no_descriptor",
        ),
        "src/driver/setup/tests.rs::a_go_without_the_descriptors_that_it_had_is_declined",
    ),
    Row(
        Diagnosis::TIMEOUT_CONFIRM_LINK,
        When(
            "the link did not come up in time",
            "tests/setup_link_faults.rs::a_server_that_does_not_confirm_the_link_is_declined_in_time",
        ),
        "tests/handshake_faults.rs::a_link_that_does_not_come_up_is_declined_in_the_version_of_the_link_group",
    ),
    Row(
        Diagnosis::TIMEOUT_ADD_LINK,
        Never("a link group has one link, and is complete without another"),
        ANY,
    ),
    Row(
        Diagnosis::CONFIGURATION,
        Never("what is configured makes for one of the codes that say more"),
        ANY,
    ),
    Row(
        Diagnosis::PEER_NO_SMC,
        Never(
            "there is no handshake with such a peer; a stream says it of itself, as `peer_plain`",
        ),
        ANY,
    ),
    Row(
        Diagnosis::IPSEC,
        Never(
            "policies of IPsec are not looked at, see [threats.md](threats.md#what-firewalls-tcpdump-and-ipsec-do-not-see)",
        ),
        ANY,
    ),
    Row(
        Diagnosis::NO_SMC_DEVICE,
        When(
            "a client has nothing to propose; or no enterprise id of a client with a device is known here",
            "tests/handshake_codes.rs::no_smc_device_at_the_client",
        ),
        "tests/setup_links.rs::links_need_an_enterprise_id_of_both_and_memory_does_not",
    ),
    Row(
        Diagnosis::NO_SMC_D_DEVICE,
        When(
            "SMC-D of version 1 is proposed, which is not here",
            "tests/handshake_codes.rs::no_smc_d_device",
        ),
        ANY,
    ),
    Row(
        Diagnosis::NO_SMC_R_DEVICE,
        When(
            "SMC-R is proposed, and no device is here; or the GID of the other end is no IPv4 address in version 2",
            "tests/handshake_codes.rs::no_smc_r_device",
        ),
        "tests/setup_links.rs::who_has_nothing_to_offer_declines",
    ),
    Row(
        Diagnosis::NO_ISM_V2,
        When(
            "SMC-D alone is proposed, and shared memory is not among the own paths",
            "tests/handshake_codes.rs::no_ism_v2",
        ),
        "tests/setup_links.rs::who_has_nothing_to_offer_declines",
    ),
    Row(
        Diagnosis::NO_V2_EXTENSION,
        Never(
            "a Proposal of version 2 without the extension is no message, and ends the handshake",
        ),
        ANY,
    ),
    Row(
        Diagnosis::NO_SMC_D_V2_EXTENSION,
        Never("a Proposal of SMC-Dv2 without the extension is no message, and ends the handshake"),
        ANY,
    ),
    Row(
        Diagnosis::NO_SEID,
        When(
            "SMC-Dv2 is proposed with other enterprise ids than the own",
            "tests/handshake_codes.rs::no_seid_and_no_common_ueid",
        ),
        ANY,
    ),
    Row(
        Diagnosis::NO_SMC_D_V2_DEVICE,
        When(
            "the memory of the other end is out of reach: on another host, of another user, or the rendezvous broke off",
            "tests/test_handshake.py::test_a_client_that_hangs_up_the_rendezvous_too_early",
        ),
        "tests/setup_links.rs::a_client_out_of_reach_without_a_device_is_declined",
    ),
    Row(
        Diagnosis::NO_UEID,
        When(
            "a Proposal of version 2 has no enterprise id",
            "tests/handshake_codes.rs::no_ueid_in_the_proposal",
        ),
        ANY,
    ),
    Row(
        Diagnosis::RELEASE,
        When(
            "an Accept has a later release than was proposed, or a Confirm another one than was accepted",
            "tests/handshake_codes.rs::release_of_the_confirm",
        ),
        ANY,
    ),
    Row(
        Diagnosis::MAX_CONNECTIONS,
        When(
            "fewer than 16 connections are proposed or accepted, or a Confirm does not repeat the number",
            "tests/handshake_codes.rs::max_connections_of_the_confirm",
        ),
        ANY,
    ),
    Row(
        Diagnosis::MAX_LINKS,
        When(
            "no link is proposed, a number is accepted that there cannot be, or a Confirm does not repeat it",
            "tests/handshake_codes.rs::max_links_of_the_confirm",
        ),
        ANY,
    ),
    Row(
        Diagnosis::MODE_MISMATCH,
        When(
            "an Accept or a Confirm is about something else than was proposed or accepted",
            "tests/handshake_codes.rs::mode_mismatch_for_a_way_that_was_not_proposed",
        ),
        ANY,
    ),
    Row(
        Diagnosis::RMBE_EYECATCHER,
        When(
            "the peer puts eyecatchers into its receive buffers",
            "tests/setup_link_faults.rs::a_server_with_eyecatchers_is_declined",
        ),
        "tests/setup_link_faults.rs::a_server_with_eyecatchers_is_declined",
    ),
    Row(
        Diagnosis::SOCKET_OPTION,
        Never("with Fast Open there is no handshake; a stream says so itself, as `option_unfit`"),
        ANY,
    ),
    Row(
        Diagnosis::PREFIX_MISMATCH,
        When(
            "version 1 is proposed from another subnet",
            "tests/handshake_codes.rs::prefix_mismatch",
        ),
        ANY,
    ),
    Row(
        Diagnosis::VLAN_GET,
        Never("a GID in another VLAN does not fit, so the device is not offered"),
        ANY,
    ),
    Row(
        Diagnosis::VLAN_REGISTER,
        Never("the VLAN of a GID is the interface's, and nobody registers it"),
        ANY,
    ),
    Row(
        Diagnosis::NO_ACTIVE_LINK,
        When(
            "the link failed before the connection was on it",
            "tests/setup_link_faults.rs::a_link_that_is_spoilt_at_the_server_is_declined",
        ),
        "tests/setup_link_faults.rs::a_link_that_is_spoilt_at_the_client_is_declined",
    ),
    Row(
        Diagnosis::NO_SERVER_LINK,
        Never(
            "a group has one link, so a link that is not known is a group that is not: `synchronization`",
        ),
        ANY,
    ),
    Row(
        Diagnosis::VERSION_MISMATCH,
        When(
            "the other end is of a build whose rendezvous or shared memory is another",
            "tests/test_versions.py::test_an_assumed_client_of_another_build",
        ),
        "tests/test_versions.py::test_an_assumed_server_of_another_build",
    ),
    Row(
        Diagnosis::DMB_LIMIT,
        When(
            "the peer has 256 link groups, or a quota of memory or watches is used up",
            "src/driver/setup/tests.rs::a_peer_that_has_all_its_groups_is_declined_at_either_end",
        ),
        "src/driver/setup/tests.rs::a_peer_that_has_all_its_groups_is_declined_at_either_end",
    ),
    Row(
        Diagnosis::NO_ROUTE,
        Never("the device finds the route or does not: `queue_pair`"),
        ANY,
    ),
    Row(
        Diagnosis::INDIRECT_MISMATCH,
        Never("either way is taken, as the other end says"),
        ANY,
    ),
    Row(
        Diagnosis::SYNCHRONIZATION,
        When(
            "a server wants to use a link group again that its client does not have",
            "tests/setup_link_faults.rs::a_group_that_the_client_does_not_know_is_out_of_sync",
        ),
        "tests/setup_link_faults.rs::a_client_that_is_out_of_sync_ends_the_group",
    ),
    Row(
        Diagnosis::PEER_DECLINED,
        Never("it is what an end says of itself; with path \"kernel\" that is the kernel"),
        "tests/test_kernel.py::test_what_the_kernel_tells_of_tcp",
    ),
    Row(
        Diagnosis::INTERNAL_ERROR,
        When(
            "the peer broke a rule of the rendezvous, of its memory or of the link",
            "tests/test_handshake.py::test_a_broken_go",
        ),
        "src/driver/setup/tests.rs::a_server_with_a_wrong_memory_frame_is_declined",
    ),
    Row(
        Diagnosis::RTOKEN,
        When(
            "the peer has more than 255 keys",
            "tests/setup_link_faults.rs::a_server_with_too_many_keys_is_declined",
        ),
        "tests/setup_link_faults.rs::a_client_that_declines_a_place_leaves_the_group",
    ),
    Row(
        Diagnosis::QUEUE_PAIR,
        When(
            "the queue pair cannot be made, or not be connected with the peer's",
            "tests/setup_link_faults.rs::a_device_that_is_gone_is_a_decline_at_either_end",
        ),
        "tests/handshake_codes.rs::declines_have_the_version_of_the_message_that_they_answer",
    ),
    Row(
        Diagnosis::BUFFER_REGISTRATION,
        When(
            "a buffer cannot be registered, or the peer does not confirm or refuses its key",
            "tests/setup_link_faults.rs::a_client_that_can_register_nothing_declines",
        ),
        "tests/setup_link_faults.rs::a_late_decline_of_the_server_counts",
    ),
];

/// What is wrong with a test that is named as `file::name` for a code: it is not there, or its file does not know the code.
fn fault(code: Diagnosis, test: &str) -> Option<String> {
    let name = code.name().expect("a code with a name");
    let Some((path, function)) = test.split_once("::") else {
        return Some(format!("{name}: no test is named, but {test:?}"));
    };
    let Ok(text) = std::fs::read_to_string(root().join(path)) else {
        return Some(format!("{name}: there is no {path}"));
    };
    if !has_test(path, &text, function) {
        return Some(format!("{name}: {path} has no test {function}"));
    }
    let hex = format!("0x{:04X}_{:04X}", code.0 >> 16, code.0 & 0xffff);
    let rust = format!("Diagnosis::{name}");
    let known = [rust.as_str(), "Diagnosis::ALL", &hex, "_core.DIAGNOSES"];
    let knows = known.iter().any(|word| text.contains(word));
    (!knows).then(|| format!("{name}: {path} has none of {known:?}"))
}

fn has_test(path: &str, text: &str, function: &str) -> bool {
    let head = if path.ends_with(".py") {
        format!("def {function}(")
    } else {
        format!("#[test]\nfn {function}(")
    };
    text.contains(&head) && (path.ends_with(".rs") || function.starts_with("test_"))
}

fn cell(test: &str) -> String {
    let (path, function) = test.split_once("::").expect("file::name");
    format!("`{function}` in [{path}](../{path})")
}

fn page() -> String {
    let mut page = String::from(HEAD);
    for Row(code, sent, received) in ROWS {
        let name = code.name().expect("a code with a name").to_lowercase();
        let (when, sender) = match sent {
            When(when, test) => (format!("when {when}"), cell(test)),
            Never(why) => (format!("never: {why}"), "none".to_owned()),
        };
        let received = cell(received);
        writeln!(
            page,
            "| {:#010X} | `{name}` | {when} | {sender} | {received} |",
            code.0
        )
        .expect("memory");
    }
    page.replace("0X", "0x")
}

#[test]
fn every_code_has_a_row() {
    let rows: Vec<Diagnosis> = ROWS.iter().map(|Row(code, ..)| *code).collect();
    assert_eq!(rows, Diagnosis::ALL);
}

#[test]
fn every_test_that_is_named_is_there_and_knows_the_code() {
    let mut faults = Vec::new();
    for Row(code, sent, received) in ROWS {
        faults.extend(fault(*code, received));
        match sent {
            When(when, test) => {
                faults.extend(when.is_empty().then(|| format!("{code:?}: sent when?")));
                faults.extend(fault(*code, test));
            }
            Never(why) => faults.extend(why.is_empty().then(|| format!("{code:?}: why never?"))),
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

/// The layers that decline name each code with a sender, and no other.
#[test]
fn what_is_sent_is_what_the_sources_name() {
    let layers = ["src/proto/handshake", "src/proto/link", "src/driver"];
    let sources: String = layers
        .iter()
        .flat_map(|layer| files(layer, &[".rs"]))
        .filter(|file| !file.path.contains("tests"))
        .map(|file| code(&file.text))
        .collect();
    let names: BTreeSet<&str> = sources
        .split("Diagnosis::")
        .skip(1)
        .filter_map(|rest| words(rest).next())
        .map(|(_, word)| word)
        .filter(|word| Diagnosis::ALL.iter().any(|code| code.name() == Some(word)))
        .collect();
    let sent = ROWS
        .iter()
        .filter(|Row(_, sent, _)| matches!(sent, When(..)));
    let sent: BTreeSet<&str> = sent.filter_map(|Row(code, ..)| code.name()).collect();
    assert_eq!(names, sent);
}

#[test]
fn the_page_is_the_table() {
    let path = root().join(PAGE);
    if std::env::var_os("TEST_WRITE").is_some() {
        std::fs::write(&path, page()).expect("a page");
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == page(),
        "{PAGE} is not what the table makes: TEST_WRITE=1 cargo test --test diagnoses"
    );
}

#[test]
fn a_test_that_is_not_there_is_found() {
    let text =
        "#[test]\nfn a_test() {}\nfn no_test() {}\nasync def test_python(x):\ndef helper(x):";
    assert!(has_test("tests/a.rs", text, "a_test"));
    assert!(has_test("tests/a.py", text, "test_python"));
    for (path, function) in [
        ("a.rs", "no_test"),
        ("a.rs", "a_tes"),
        ("a.py", "helper"),
        ("a.py", "a_test"),
    ] {
        assert!(!has_test(path, text, function), "{path} {function}");
    }
    let here = "tests/diagnoses.rs::the_page_is_the_table";
    assert_eq!(fault(Diagnosis::RTOKEN, here), None);
    for test in [
        "",
        "tests/no_such_file.rs::a_test",
        "tests/diagnoses.rs::page",
        "tests/arrows.rs::layers_import_only_what_lies_below_them",
    ] {
        assert!(fault(Diagnosis::RTOKEN, test).is_some(), "{test}");
    }
}
