//! What must hold for any words of a status page whatever. Property tests and a fuzz target call this.

use smcfast::wire::status::{self, HEAD_WORDS, ROW_WORDS};

/// Words of a status page, filled up with zeros: a row at their start, and a head.
pub(crate) fn status_laws(bytes: &[u8]) {
    let mut words = [0; HEAD_WORDS];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks(8)) {
        let mut whole = [0; 8];
        whole[..chunk.len()].copy_from_slice(chunk);
        *word = u64::from_ne_bytes(whole);
    }
    let row: &[u64; ROW_WORDS] = words.first_chunk().unwrap();
    if let Ok(Some(row)) = status::Row::decode(row) {
        assert_eq!(status::Row::decode(&row.encode()), Ok(Some(row)));
        assert!(row.read <= row.received && row.acknowledged <= row.sent);
    }
    let known = status::Head::version(&words).is_ok();
    match status::Head::decode(&words) {
        Ok(head) => {
            assert!(known && head.used <= status::CAPACITY);
            assert_eq!(status::Head::decode(&head.encode()), Ok(head));
        }
        Err(error) => assert!(error.to_string().starts_with("status page: ")),
    }
}
