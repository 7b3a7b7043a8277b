// The entry points of libmlxc, as build/entries.rs writes them. tests/entries.rs compiles this file for each processor.
#[cfg(target_arch = "x86_64")]
global_asm!(
    include_str!(concat!(env!("OUT_DIR"), "/entries.s")),
    options(att_syntax)
);
#[cfg(not(target_arch = "x86_64"))]
global_asm!(include_str!(concat!(env!("OUT_DIR"), "/entries.s")));
