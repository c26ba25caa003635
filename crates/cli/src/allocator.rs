//! The allocator of the process: mimalloc, called without an alignment where every block has it
//! anyway.
//!
//! The crate `mimalloc` passes every alignment on. For a block above a kilobyte, such as a
//! connection's buffer or the future of a request, mimalloc then allocates more and moves the start,
//! and looks for the start again to free it.

#![allow(
    unsafe_code,
    reason = "an allocator is a set of unsafe functions; each passes its arguments on"
)]

use std::alloc::{GlobalAlloc, Layout};

use libmimalloc_sys::{mi_malloc, mi_realloc, mi_zalloc};
use mimalloc::MiMalloc;

/// The alignment of every block of mimalloc.
const ALIGNMENT: usize = align_of::<usize>();

pub(crate) struct Allocator;

// SAFETY: each function is mimalloc's own, which allocates, grows and frees blocks by the same
// rules. The functions without an alignment are called only for one that every block has. Blocks
// of both kinds are grown and freed by the same functions, so that it does not matter which kind
// a block is.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match layout.align() <= ALIGNMENT {
            true => unsafe { mi_malloc(layout.size()).cast() },
            false => unsafe { MiMalloc.alloc(layout) },
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match layout.align() <= ALIGNMENT {
            true => unsafe { mi_zalloc(layout.size()).cast() },
            false => unsafe { MiMalloc.alloc_zeroed(layout) },
        }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        match layout.align() <= ALIGNMENT {
            true => unsafe { mi_realloc(block.cast(), size).cast() },
            false => unsafe { MiMalloc.realloc(block, layout, size) },
        }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        unsafe { MiMalloc.dealloc(block, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_is_aligned() {
        for align in [1, 2, 4, 8, 16, 64, 4096] {
            for size in (1..200).chain([1000, 4096, 70_000, 1 << 20, 5 << 20]) {
                let layout = Layout::from_size_align(size, align).expect("a small layout");
                // SAFETY: the block is used within its size and freed with its layout.
                unsafe {
                    let block = Allocator.alloc(layout);
                    assert_eq!(block as usize % align, 0, "{layout:?}");
                    block.write_bytes(7, size);
                    let block = Allocator.realloc(block, layout, size * 2);
                    assert_eq!(block as usize % align, 0, "{layout:?}, grown");
                    assert_eq!(*block.add(size - 1), 7);
                    let grown = Layout::from_size_align(size * 2, align).expect("a small layout");
                    Allocator.dealloc(block, grown);
                }
            }
        }
    }
}
