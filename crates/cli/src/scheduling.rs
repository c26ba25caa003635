//! How the kernel divides processors between the threads of this process and others.
//!
//! Threads that serve requests work for microseconds and then wait again. Linux gives threads that
//! share a processor slices of milliseconds, so that one with an answer to write may wait as long
//! for another one to end its slice. A thread that asks for shorter slices gets no more of the
//! processor, but gets it sooner: it may interrupt one with a longer slice, and one that yields
//! goes back by its own slice only. Linux heeds this since version 6.12; before, and where the
//! kernel refuses, nothing changes. Threads and processes that a thread starts inherit it.

#[cfg(target_os = "linux")]
mod linux {
    #![allow(
        unsafe_code,
        reason = "the C library has no function for this system call"
    )]

    use std::mem;
    use std::time::Duration;

    /// The shortest that Linux allows.
    const SLICE: Duration = Duration::from_micros(100);

    pub(crate) fn ask_for_short_slices() {
        // SAFETY: all zeros is a value of this plain structure.
        let mut attributes: libc::sched_attr = unsafe { mem::zeroed() };
        let this_thread = 0;
        // SAFETY: the kernel writes no more than the size that is passed, that of the structure.
        let read = unsafe {
            libc::syscall(
                libc::SYS_sched_getattr,
                this_thread,
                &raw mut attributes,
                mem::size_of_val(&attributes),
                0,
            )
        };
        // Other policies than the usual one were chosen by whoever started the process, and have
        // no slices or longer ones for a reason.
        if read != 0 || attributes.sched_policy != libc::SCHED_OTHER.cast_unsigned() {
            return;
        }
        attributes.sched_runtime = SLICE.as_nanos() as u64;
        // SAFETY: the kernel reads the structure, whose size is in its first field. Slices are no
        // more than a wish, so a refusal changes nothing.
        unsafe {
            libc::syscall(
                libc::SYS_sched_setattr,
                this_thread,
                &raw const attributes,
                0,
            );
        }
    }
}

#[cfg(target_os = "linux")]
pub(crate) use linux::ask_for_short_slices;

#[cfg(not(target_os = "linux"))]
pub(crate) fn ask_for_short_slices() {}
