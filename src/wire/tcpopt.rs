//! The TCP option with which both ends say in SYN and SYN/ACK that they speak SMC.
//!
//! `fe 06 e2 d4 c3 d9`: an experimental option (kind 254, RFC 6994) whose id is "SMCR" in EBCDIC. All versions of SMC-R
//! and SMC-D use it. Kind 254 has other owners: TCP Fast Open's experimental form is `fe .. f9 89`.

/// The option.
pub const OPTION: [u8; 6] = [KIND, 6, 0xe2, 0xd4, 0xc3, 0xd9];

/// The option as the kernel sends it: two NOPs in front make it end at a multiple of four bytes.
pub const PADDED: [u8; 8] = [NOP, NOP, KIND, 6, 0xe2, 0xd4, 0xc3, 0xd9];

/// Bytes of options that a TCP header has room for.
pub const MAX_OPTIONS: usize = 40;

const END: u8 = 0;
const NOP: u8 = 1;
const KIND: u8 = 254;

/// Where the SMC option stands in the options of a TCP header, if it is there.
///
/// As TCP does, this stops at the end-of-options mark and at the first option whose length is impossible.
#[must_use]
pub fn find(options: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        match *options.get(at..)? {
            [] | [END, ..] => return None,
            [NOP, ..] => at += 1,
            [_, len, ..] => {
                let end = at + usize::from(len);
                let option = options.get(at..end).filter(|option| option.len() >= 2)?;
                if option == OPTION {
                    return Some(at);
                }
                at = end;
            }
            [_] => return None,
        }
    }
}

/// Appends the padded option to options that end at a multiple of four bytes. Does nothing and returns `false` when
/// fewer than 8 bytes are left.
#[must_use]
pub fn append(options: &mut Vec<u8>) -> bool {
    let fits = options.len() + PADDED.len() <= MAX_OPTIONS;
    if fits {
        options.extend_from_slice(&PADDED);
    }
    fits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_is_found_among_others() {
        assert_eq!(find(&PADDED), Some(2));
        assert_eq!(find(&OPTION), Some(0));
        assert_eq!(
            find(&[2, 4, 5, 0xb4, 0xfe, 6, 0xe2, 0xd4, 0xc3, 0xd9, 1]),
            Some(4)
        );
        assert_eq!(find(&[2, 4, 5, 0xb4]), None);
        assert_eq!(find(&[]), None);
    }

    #[test]
    fn other_experiments_are_not_taken_for_it() {
        assert_eq!(find(&[0xfe, 4, 0xf9, 0x89]), None);
        assert_eq!(
            find(&[0xfe, 12, 0xf9, 0x89, 0xfe, 6, 0xe2, 0xd4, 0xc3, 0xd9, 1, 1]),
            None
        );
        assert_eq!(
            find(&[0xfe, 4, 0xf9, 0x89, 0xfe, 6, 0xe2, 0xd4, 0xc3, 0xd9]),
            Some(4)
        );
        assert_eq!(find(&[0xfd, 6, 0xe2, 0xd4, 0xc3, 0xd9]), None);
        assert_eq!(find(&[0xfe, 6, 0xe2, 0xd4, 0xc3, 0xd8]), None);
        assert_eq!(find(&[0xfe, 7, 0xe2, 0xd4, 0xc3, 0xd9, 0]), None);
    }

    #[test]
    fn broken_options_end_the_search() {
        assert_eq!(find(&[&[0][..], &OPTION].concat()), None);
        assert_eq!(find(&[&[8, 0][..], &OPTION].concat()), None);
        assert_eq!(find(&[&[8, 1][..], &OPTION].concat()), None);
        assert_eq!(find(&[8]), None);
        for cut in 0..OPTION.len() {
            assert_eq!(find(&OPTION[..cut]), None);
        }
    }

    #[test]
    fn the_option_is_appended_while_there_is_room() {
        let mut options = vec![NOP; 32];
        assert!(append(&mut options));
        assert_eq!((options.len(), find(&options)), (40, Some(34)));
        let mut full = vec![NOP; 33];
        assert!(!append(&mut full));
        assert_eq!(full.len(), 33);
    }
}
