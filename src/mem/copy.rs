//! Copies between private memory and memory that another process may be writing.
//!
//! A plain Rust copy would be a data race if the peer writes there at the same time, and its compiler could assume that
//! two reads give one value. These copies are machine code (`asm!`): for the compiler an opaque operation on the bytes
//! that the pointers reach, for the machine ordinary loads and stores. Racing with the peer then yields some mixture of
//! old and new bytes, which is what the ring's cursors exclude for an honest peer and what a hostile one may have.
//!
//! Why not memcpy of the C library: it switches to `rep movsb` above 2 KiB, which is up to four times slower when
//! source and destination agree modulo 4 KiB to within 16 bytes, and ring offsets often do.

/// Copies `len` bytes from `src` to `dst`.
///
/// # Safety
/// Both ranges lie in mapped memory, `src` readable, `dst` writable, for the length of the call, and do not overlap.
/// No Rust reference to the shared one of the two ranges exists.
#[cfg(all(target_arch = "x86_64", not(any(miri, plain_copy))))]
pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    use x86::{copy_blocks_avx2, copy_blocks_sse2, copy_small};
    if len < 64 {
        // SAFETY: the caller's promise, for len < 64.
        return unsafe { copy_small(dst, src, len) };
    }
    if len >= 512 && std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the caller's promise, for len >= 128, on a CPU that has AVX2.
        unsafe { copy_blocks_avx2(dst, src, len) }
    } else {
        // SAFETY: the caller's promise, for len >= 64.
        unsafe { copy_blocks_sse2(dst, src, len) }
    }
}

#[cfg(all(target_arch = "x86_64", not(any(miri, plain_copy))))]
mod x86 {
    use core::arch::asm;

    /// `len` >= 64: whole blocks of 64 bytes, then the last 64 bytes once more, which overlap what was copied already.
    ///
    /// # Safety
    /// As [`super::copy`], and `len` >= 64.
    pub(super) unsafe fn copy_blocks_sse2(dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: every block lies in [0, len): `blocks` = len / 64 * 64 <= len, and the tail starts at len - 64 >= 0.
        unsafe {
            asm!(
                "2:",
                "movdqu {a}, [{s}]",
                "movdqu {b}, [{s} + 16]",
                "movdqu {c}, [{s} + 32]",
                "movdqu {e}, [{s} + 48]",
                "movdqu [{d}], {a}",
                "movdqu [{d} + 16], {b}",
                "movdqu [{d} + 32], {c}",
                "movdqu [{d} + 48], {e}",
                "add {s}, 64",
                "add {d}, 64",
                "sub {n}, 64",
                "jnz 2b",
                "movdqu {a}, [{ts}]",
                "movdqu {b}, [{ts} + 16]",
                "movdqu {c}, [{ts} + 32]",
                "movdqu {e}, [{ts} + 48]",
                "movdqu [{td}], {a}",
                "movdqu [{td} + 16], {b}",
                "movdqu [{td} + 32], {c}",
                "movdqu [{td} + 48], {e}",
                s = inout(reg) src => _,
                d = inout(reg) dst => _,
                n = inout(reg) len & !63 => _,
                ts = in(reg) src.wrapping_add(len - 64),
                td = in(reg) dst.wrapping_add(len - 64),
                a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, e = out(xmm_reg) _,
                options(nostack),
            );
        }
    }

    /// `len` >= 128, as above in blocks of 128 bytes.
    ///
    /// # Safety
    /// As [`super::copy`], `len` >= 128, and the CPU has AVX2.
    #[target_feature(enable = "avx2")]
    #[inline(never)]
    pub(super) unsafe fn copy_blocks_avx2(dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: as for SSE2, with blocks of 128: len / 128 * 128 <= len and len - 128 >= 0. `vzeroupper` changes all
        // sixteen registers, and all sixteen are declared as changed.
        unsafe {
            asm!(
                "2:",
                "vmovdqu ymm0, [{s}]",
                "vmovdqu ymm1, [{s} + 32]",
                "vmovdqu ymm2, [{s} + 64]",
                "vmovdqu ymm3, [{s} + 96]",
                "vmovdqu [{d}], ymm0",
                "vmovdqu [{d} + 32], ymm1",
                "vmovdqu [{d} + 64], ymm2",
                "vmovdqu [{d} + 96], ymm3",
                "add {s}, 128",
                "add {d}, 128",
                "sub {n}, 128",
                "jnz 2b",
                "vmovdqu ymm0, [{ts}]",
                "vmovdqu ymm1, [{ts} + 32]",
                "vmovdqu ymm2, [{ts} + 64]",
                "vmovdqu ymm3, [{ts} + 96]",
                "vmovdqu [{td}], ymm0",
                "vmovdqu [{td} + 32], ymm1",
                "vmovdqu [{td} + 64], ymm2",
                "vmovdqu [{td} + 96], ymm3",
                "vzeroupper",
                s = inout(reg) src => _,
                d = inout(reg) dst => _,
                n = inout(reg) len & !127 => _,
                ts = in(reg) src.wrapping_add(len - 128),
                td = in(reg) dst.wrapping_add(len - 128),
                out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _,
                out("ymm4") _, out("ymm5") _, out("ymm6") _, out("ymm7") _,
                out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _,
                out("ymm12") _, out("ymm13") _, out("ymm14") _, out("ymm15") _,
                options(nostack),
            );
        }
    }

    /// `len` < 64: two halves that may overlap, of 32, 16, 8, 4 or 2 bytes, or one byte.
    ///
    /// # Safety
    /// As [`super::copy`], and `len` < 64.
    pub(super) unsafe fn copy_small(dst: *mut u8, src: *const u8, len: usize) {
        macro_rules! two {
            ($class:ident, $mov:literal, $modifier:literal, $width:literal) => {
                // SAFETY: width <= len < 2 * width, so both [0, width) and [len - width, len) lie in [0, len).
                unsafe {
                    asm!(
                        concat!($mov, " {a", $modifier, "}, [{s}]"),
                        concat!($mov, " {b", $modifier, "}, [{s} + {n} - ", $width, "]"),
                        concat!($mov, " [{d}], {a", $modifier, "}"),
                        concat!($mov, " [{d} + {n} - ", $width, "], {b", $modifier, "}"),
                        s = in(reg) src, d = in(reg) dst, n = in(reg) len,
                        a = out($class) _, b = out($class) _,
                        options(nostack, preserves_flags),
                    )
                }
            };
        }
        match len {
            // SAFETY: 32 <= len < 64: [0, 32) and [len - 32, len) lie in [0, len).
            32.. => unsafe {
                asm!(
                    "movdqu {a}, [{s}]",
                    "movdqu {b}, [{s} + 16]",
                    "movdqu {c}, [{s} + {n} - 32]",
                    "movdqu {e}, [{s} + {n} - 16]",
                    "movdqu [{d}], {a}",
                    "movdqu [{d} + 16], {b}",
                    "movdqu [{d} + {n} - 32], {c}",
                    "movdqu [{d} + {n} - 16], {e}",
                    s = in(reg) src, d = in(reg) dst, n = in(reg) len,
                    a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, e = out(xmm_reg) _,
                    options(nostack, preserves_flags),
                );
            },
            16.. => two!(xmm_reg, "movdqu", "", "16"),
            8.. => two!(reg, "mov", ":r", "8"),
            4.. => two!(reg, "mov", ":e", "4"),
            2.. => two!(reg, "mov", ":x", "2"),
            // SAFETY: one byte at offset 0, len is 1.
            1 => unsafe {
                asm!(
                    "mov {a}, byte ptr [{s}]",
                    "mov byte ptr [{d}], {a}",
                    s = in(reg) src, d = in(reg) dst, a = out(reg_byte) _,
                    options(nostack, preserves_flags),
                );
            },
            0 => {}
        }
    }
}

/// Copies `len` bytes from `src` to `dst`.
///
/// # Safety
/// Both ranges lie in mapped memory, `src` readable, `dst` writable, for the length of the call, and do not overlap.
/// No Rust reference to the shared one of the two ranges exists.
#[cfg(all(target_arch = "aarch64", not(any(miri, plain_copy))))]
pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    use core::arch::asm;
    let blocks = len & !63;
    if blocks > 0 {
        // SAFETY: blocks <= len, so every access lies in [0, len).
        unsafe {
            asm!(
                "2:",
                "ldp {a:q}, {b:q}, [{s}], #32",
                "ldp {c:q}, {e:q}, [{s}], #32",
                "stp {a:q}, {b:q}, [{d}], #32",
                "stp {c:q}, {e:q}, [{d}], #32",
                "subs {n}, {n}, #64",
                "b.ne 2b",
                s = inout(reg) src => _,
                d = inout(reg) dst => _,
                n = inout(reg) blocks => _,
                a = out(vreg) _, b = out(vreg) _, c = out(vreg) _, e = out(vreg) _,
                options(nostack),
            );
        }
    }
    let tail = len - blocks;
    if tail > 0 {
        // SAFETY: [blocks, len) lies in [0, len); n counts down from tail to 0.
        unsafe {
            asm!(
                "2:",
                "ldrb {a:w}, [{s}], #1",
                "strb {a:w}, [{d}], #1",
                "subs {n}, {n}, #1",
                "b.ne 2b",
                s = inout(reg) src.wrapping_add(blocks) => _,
                d = inout(reg) dst.wrapping_add(blocks) => _,
                n = inout(reg) tail => _,
                a = out(reg) _,
                options(nostack),
            );
        }
    }
}

/// Copies `len` bytes from `src` to `dst` so that a sanitizer sees them: to ThreadSanitizer a copy that no cursor orders
/// behind its writer is a data race, to AddressSanitizer one that leaves an allocation is an error.
///
/// # Safety
/// As above, and both ends belong to this process: a test's.
#[cfg(plain_copy)]
pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { core::ptr::copy_nonoverlapping(src, dst, len) }
}

/// Copies `len` bytes from `src` to `dst`, byte by byte with relaxed atomic accesses: for interpreters and other machines.
///
/// # Safety
/// Both ranges lie in mapped memory, `src` readable, `dst` writable, for the length of the call, and do not overlap.
#[cfg(all(
    not(plain_copy),
    any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64")))
))]
pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    use core::sync::atomic::{AtomicU8, Ordering::Relaxed};
    for i in 0..len {
        // SAFETY: i < len; u8 has no alignment; the caller promises mapped memory for the length of the call.
        let from = unsafe { AtomicU8::from_ptr(src.wrapping_add(i).cast_mut()) };
        // SAFETY: as above.
        let to = unsafe { AtomicU8::from_ptr(dst.wrapping_add(i)) };
        to.store(from.load(Relaxed), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::copy;

    /// Every length around the block sizes, at every alignment of both ends, with guard bytes on both sides.
    #[test]
    fn every_length_and_alignment_is_exact() {
        let source: Vec<u8> = (0..2048u32).map(|i| (i * 7 + i / 251) as u8).collect();
        for len in (0..200).chain([
            255, 256, 257, 511, 512, 513, 640, 767, 1023, 1024, 1025, 1500,
        ]) {
            for (from, to) in [(0, 0), (1, 0), (0, 1), (3, 5), (15, 16), (31, 33), (63, 1)] {
                let mut target = vec![0xa5u8; 1700];
                let (start, end) = (8 + to, 8 + to + len);
                let (into, out) = (
                    target[start..end].as_mut_ptr(),
                    source[from..from + len].as_ptr(),
                );
                // SAFETY: both ranges of `len` bytes were checked by the slices; they are of two separate vectors.
                unsafe { copy(into, out, len) };
                assert_eq!(
                    &target[8 + to..8 + to + len],
                    &source[from..from + len],
                    "len {len} from {from} to {to}"
                );
                assert!(
                    target[..8 + to].iter().all(|&b| b == 0xa5),
                    "before, len {len}"
                );
                assert!(
                    target[8 + to + len..].iter().all(|&b| b == 0xa5),
                    "behind, len {len}"
                );
            }
        }
    }
}
