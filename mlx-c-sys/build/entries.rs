//! The assembler text of the entry points of libmlxc, which `src/loader.rs` opens at the first call.
//!
//! Each function of the library jumps through its slot of the table `mlxc_entries`. At first a slot has the address of
//! code that calls `mlxc_resolve` with the function's index, keeps all registers that pass arguments, and then jumps to
//! the address that it got. `mlxc_resolve` fills the table, so later calls take the short way.

use std::fmt::Write;

/// The text for a processor, in the syntax that `src/entries.rs` names; `None` for one of which it has none.
pub fn assembly(architecture: &str, names: &[&str]) -> Option<String> {
    let resolve = match architecture {
        "x86_64" => X86_64,
        "aarch64" => AARCH64,
        _ => return None,
    };
    let mut text = String::from(".text\n");
    for (index, name) in names.iter().enumerate() {
        let slot = format!("mlxc_entries+{}", 8 * index);
        let (jump, first) = match architecture {
            "x86_64" => (
                format!("jmpq *{slot}(%rip)"),
                format!("pushq ${index}\njmp mlxc_first"),
            ),
            // The load has acquire order: what `mlxc_resolve` did before it filled the slot comes before the jump.
            _ => (
                format!("adrp x16, {slot}\nadd x16, x16, :lo12:{slot}\nldar x16, [x16]\nbr x16"),
                format!("mov x17, #{index}\nb mlxc_first"),
            ),
        };
        let _ = write!(
            text,
            ".globl {name}\n.hidden {name}\n.type {name}, %function\n.p2align 2\n{name}:\n{jump}\n\
             .size {name}, .-{name}\nmlxc_first_{index}:\n{first}\n"
        );
    }
    text += resolve;
    text += ".data\n.globl mlxc_entries\n.hidden mlxc_entries\n.p2align 3\nmlxc_entries:\n";
    for index in 0..names.len() {
        let _ = writeln!(text, ".quad mlxc_first_{index}");
    }
    text += ".text\n";
    Some(text)
}

/// The stack has the index, then the caller's return address. 16 bytes divide its address after the index was pushed.
const X86_64: &str = "\
.p2align 4
mlxc_first:
pushq %rax
pushq %rdi
pushq %rsi
pushq %rdx
pushq %rcx
pushq %r8
pushq %r9
pushq %r10
subq $128, %rsp
movups %xmm0, (%rsp)
movups %xmm1, 16(%rsp)
movups %xmm2, 32(%rsp)
movups %xmm3, 48(%rsp)
movups %xmm4, 64(%rsp)
movups %xmm5, 80(%rsp)
movups %xmm6, 96(%rsp)
movups %xmm7, 112(%rsp)
movq 192(%rsp), %rdi
call mlxc_resolve
movq %rax, %r11
movups (%rsp), %xmm0
movups 16(%rsp), %xmm1
movups 32(%rsp), %xmm2
movups 48(%rsp), %xmm3
movups 64(%rsp), %xmm4
movups 80(%rsp), %xmm5
movups 96(%rsp), %xmm6
movups 112(%rsp), %xmm7
addq $128, %rsp
popq %r10
popq %r9
popq %r8
popq %rcx
popq %rdx
popq %rsi
popq %rdi
popq %rax
addq $8, %rsp
jmpq *%r11
";

/// The index is in x17. x8 has the address of a large result.
const AARCH64: &str = "\
.p2align 4
mlxc_first:
stp x29, x30, [sp, #-224]!
mov x29, sp
stp x0, x1, [sp, #16]
stp x2, x3, [sp, #32]
stp x4, x5, [sp, #48]
stp x6, x7, [sp, #64]
str x8, [sp, #80]
stp q0, q1, [sp, #96]
stp q2, q3, [sp, #128]
stp q4, q5, [sp, #160]
stp q6, q7, [sp, #192]
mov x0, x17
bl mlxc_resolve
mov x16, x0
ldp q6, q7, [sp, #192]
ldp q4, q5, [sp, #160]
ldp q2, q3, [sp, #128]
ldp q0, q1, [sp, #96]
ldr x8, [sp, #80]
ldp x6, x7, [sp, #64]
ldp x4, x5, [sp, #48]
ldp x2, x3, [sp, #32]
ldp x0, x1, [sp, #16]
ldp x29, x30, [sp], #224
br x16
";
