//! No request makes the memory server panic, what an ordinary user asks for is judged, and every answer can be read back.
#![no_main]

use std::sync::LazyLock;

use isochrome_host::color::ledger::Owner;
use isochrome_host::server::facts::Users;
use isochrome_host::server::places::enter;
use isochrome_host::server::requests::{Peer, Requests};
use isochrome_host::server::socket::{Answer, Ask, Say, answer};
use isochrome_model::policy::{Policy, read};
use libfuzzer_sys::fuzz_target;

static POLICY: LazyLock<Policy> = LazyLock::new(|| {
    let text = "[class.control]\ncolors = 4\nclients = [\"65534\"]\n[class.batch]\ncache = \"rest\"\nclients = [\"*\"]\n";
    read(text).expect("a policy")
});

fuzz_target!(|line: &[u8]| {
    let peer = Peer { pid: std::process::id() as i32, uid: 65534 };
    let answerer = |ask, peer: Peer| match ask {
        Ask::Join(join) => {
            let judge = |peer| Requests::default().judge(&join, peer, &POLICY, &[4, 12], &Users::default());
            // Root may ask for all of it, but for no colors that there are not.
            if let Ok(request) = judge(Peer { uid: 0, ..peer }) {
                assert!(request.colors.is_none_or(|colors| colors.iter().all(|color| *color < 12)));
            }
            // Whatever nobody asks for, this process is not nobody's.
            match judge(peer) {
                Ok(request) => panic!("{request:?}"),
                Err(error) => Say::Error(error.to_string()),
            }
        }
        Ask::Place(placing) => {
            let owner = Owner::of(std::process::id()).expect("this process lives");
            match enter(&mut Vec::new(), &placing, owner, peer.uid, 4) {
                Ok(done) => Say::Text(done),
                Err(error) => Say::Error(error.to_string()),
            }
        }
        ask => Say::Text(format!("{ask:?}")),
    };
    let text = serde_json::to_vec(&answer(line, peer, &answerer)).expect("an answer is JSON");
    serde_json::from_slice::<Answer>(&text).expect("what was written can be read");
});
