//! A kernel's MSL for libraries that bind plain pointers: torch's `compile_shader`, and MLX's `metal_kernel`, which writes the
//! signature itself.
//!
//! What naga makes of a kernel counts on wgpu: buffers are references to arrays, arguments are bytes in the encoder, and the launcher
//! says how large workgroup memory is. Those libraries do none of it. So naga's entry point becomes an ordinary function, its text
//! unchanged, and a kernel around it takes a pointer for every buffer and declares workgroup memory:
//!
//! ```text
//! void main_(uint thread_, thread Arguments const& a, device type_1 const& plan, threadgroup type_2& queries) { ... }
//!
//! kernel void attend(device const uint* plan [[buffer(0)]], device const uint* arguments [[buffer(1)]], ...) {
//!     threadgroup type_2 queries;
//!     Arguments own_arguments = *(device Arguments const*)arguments;
//!     main_(thread_index_in_threadgroup, own_arguments, *(device type_1 const*)plan, queries);
//! }
//! ```
//!
//! Behind the kernel's buffers come two more: `arguments`, the words of its immediates, and `sizes`, how many bytes each buffer before them
//! has, by which naga's text holds indices to their bounds. What is before the line `kernel void` and what is between the kernel's braces can
//! be taken apart: MLX wants them so, and knows built-in values by the names that they have here.

use crate::translate::{IMMEDIATES_SLOT, Translated, translate, validated};
use naga::{AddressSpace, ScalarKind, StorageAccess, TypeInner};
use std::fmt::Write;

/// The text of the kernel `name`, with every check of bounds that wgpu has naga write.
///
/// # Errors
/// If the text is not a kernel whose buffers are arrays of words or of f32.
pub fn standalone(name: &str, wgsl: &str) -> Result<String, String> {
    let checks = wgpu::ShaderRuntimeChecks {
        // As `Kernel::build` of kvant-gpu: every loop counts up to a bound that does not change in it.
        force_loop_bounding: false,
        ..wgpu::ShaderRuntimeChecks::checked()
    };
    let (kernel, buffers) = (translate(wgsl, checks)?, buffers(wgsl)?);
    let missing = || format!("the text has no function {}", kernel.entry);
    let (before, rest) =
        kernel.msl.split_once(&format!("kernel void {}(\n", kernel.entry)).ok_or_else(missing)?;
    let (parameters, body) = rest.split_once("\n) {").ok_or_else(missing)?;
    let parameters: Vec<Parameter<'_>> = parameters.lines().map(Parameter::of).collect::<Result<_, _>>()?;
    // How many threads there may be is said of kernels alone.
    let before = before.strip_suffix(&most_threads(&kernel)).unwrap_or(before);
    let list: Vec<&str> = parameters.iter().map(|parameter| parameter.declared).collect();
    let mut text = format!("{before}void {}(\n  {}\n) {{{body}", kernel.entry, list.join("\n, "));
    // Copies of a kernel's own, and not what a launcher has put into memory of constants.
    for of_type in parameters.iter().filter_map(|parameter| parameter.told(&kernel)) {
        text = text.replace(&format!("constant {of_type}&"), &format!("thread {of_type} const&"));
    }
    text += &around(name, &kernel, &buffers, &parameters)?;
    Ok(text)
}

fn most_threads(kernel: &Translated) -> String {
    format!("[[max_total_threads_per_threadgroup({})]] ", kernel.threads.iter().product::<u32>())
}

/// A storage buffer: its name, the type of its numbers, and whether it is written.
struct Bound {
    name: String,
    number: &'static str,
    is_written: bool,
}

/// The buffers of a kernel, by binding.
fn buffers(wgsl: &str) -> Result<Vec<Bound>, String> {
    let (module, _) = validated(wgsl)?;
    let mut buffers = Vec::new();
    for (_, variable) in module.global_variables.iter() {
        let (AddressSpace::Storage { access }, Some(at)) = (variable.space, variable.binding) else {
            continue;
        };
        let name = variable.name.clone().unwrap_or_default();
        let number = match &module.types[variable.ty].inner {
            TypeInner::Array { base, .. } => match &module.types[*base].inner {
                TypeInner::Scalar(scalar) if scalar.width == 4 => match scalar.kind {
                    ScalarKind::Uint => Some("uint"),
                    ScalarKind::Float => Some("float"),
                    _ => None,
                },
                _ => None,
            },
            _ => None,
        };
        let number = number.ok_or_else(|| format!("the buffer {name} is no array of words or of f32"))?;
        buffers.push((at.binding, Bound { name, number, is_written: access.contains(StorageAccess::STORE) }));
    }
    buffers.sort_by_key(|(binding, _)| *binding);
    Ok(buffers.into_iter().map(|(_, buffer)| buffer).collect())
}

/// A parameter of naga's entry point.
struct Parameter<'a> {
    /// Without its attribute.
    declared: &'a str,
    of_type: &'a str,
    name: &'a str,
    attribute: Option<&'a str>,
}

impl<'a> Parameter<'a> {
    fn of(line: &'a str) -> Result<Parameter<'a>, String> {
        let line = line.trim_start_matches([',', ' ']).trim_end();
        let (declared, attribute) = match line.split_once(" [[") {
            Some((declared, attribute)) => (declared, Some(attribute.trim_end_matches("]]"))),
            None => (line, None),
        };
        let (of_type, name) =
            declared.rsplit_once(' ').ok_or_else(|| format!("the parameter `{line}` has no type"))?;
        Ok(Parameter { declared, of_type, name, attribute })
    }

    /// The slot that wgpu would bind it to.
    fn slot(&self) -> Option<usize> {
        self.attribute?.strip_prefix("buffer(")?.trim_end_matches(')').parse().ok()
    }

    /// The type of immediates and of sizes, which are no buffers of the kernel.
    fn told(&self, kernel: &Translated) -> Option<&'a str> {
        let is_told = self.slot().is_some_and(|slot| slot == IMMEDIATES_SLOT || slot == kernel.sizes_slot());
        is_told.then(|| self.of_type.trim_start_matches("constant ").trim_end_matches('&'))
    }
}

/// The kernel around the function.
fn around(
    name: &str,
    kernel: &Translated,
    buffers: &[Bound],
    parameters: &[Parameter<'_>],
) -> Result<String, String> {
    let (mut signature, mut body, mut given) = (Vec::new(), String::new(), Vec::new());
    let own = [("arguments", "uint", false), ("sizes", "uint", false)];
    let all =
        buffers.iter().map(|buffer| (buffer.name.as_str(), buffer.number, buffer.is_written)).chain(own);
    for (slot, (name, number, is_written)) in all.enumerate() {
        let access = if is_written { "" } else { "const " };
        signature.push(format!("    device {access}{number}* {name} [[buffer({slot})]]"));
    }
    for parameter in parameters {
        let &Parameter { of_type, name, .. } = parameter;
        match (parameter.attribute, parameter.slot()) {
            (None, _) => {
                let of_type = of_type
                    .strip_prefix("threadgroup ")
                    .and_then(|of_type| of_type.strip_suffix('&'))
                    .ok_or_else(|| format!("nothing is known of the parameter `{}`", parameter.declared))?;
                let _ = writeln!(body, "    threadgroup {of_type} {name};");
                given.push(name.to_owned());
            }
            (Some(_), Some(slot)) => given.push(match parameter.told(kernel) {
                Some(of_type) if slot == IMMEDIATES_SLOT => {
                    let _ =
                        writeln!(body, "    {of_type} own_arguments = *(device {of_type} const*)arguments;");
                    "own_arguments".to_owned()
                }
                Some(of_type) => {
                    let sizes: Vec<String> = kernel.sized.iter().map(|at| format!("sizes[{at}]")).collect();
                    let _ = writeln!(body, "    {of_type} own_sizes = {{{}}};", sizes.join(", "));
                    "own_sizes".to_owned()
                }
                None => {
                    let buffer = buffers
                        .get(slot - Translated::slot(0))
                        .ok_or_else(|| format!("the parameter `{}` is no buffer", parameter.declared))?;
                    format!("*({}*){}", of_type.trim_end_matches('&'), buffer.name)
                }
            }),
            (Some(attribute), None) => {
                signature.push(format!("    {of_type} {attribute} [[{attribute}]]"));
                given.push(attribute.to_owned());
            }
        }
    }
    Ok(format!(
        "\nkernel void {name}(\n{}\n) {{\n{body}    {}({});\n}}\n",
        signature.join(",\n"),
        kernel.entry,
        given.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::standalone;

    const SUM: &str = "
struct Arguments { count: u32, }
var<immediate> a: Arguments;
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
var<workgroup> sums: array<f32, 64>;
@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) thread: u32, @builtin(workgroup_id) id: vec3<u32>) {
    sums[thread] = x[min(thread, a.count)];
    workgroupBarrier();
    y[id.x] = sums[63u - thread];
}
";

    #[test]
    fn a_kernel_takes_pointers_and_declares_its_memory() {
        let text = standalone("sum", SUM).unwrap();
        let (function, kernel) = text.split_once("\nkernel void sum(\n").unwrap();
        assert!(!function.contains("[[") && !function.contains("constant Arguments&"), "{function}");
        let signature = [
            "    device const float* x [[buffer(0)]],",
            "    device float* y [[buffer(1)]],",
            "    device const uint* arguments [[buffer(2)]],",
            "    device const uint* sizes [[buffer(3)]],",
            "    uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],",
            "    metal::uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]",
            ") {",
        ];
        assert!(kernel.starts_with(&signature.join("\n")), "{kernel}");
        assert!(kernel.contains("    threadgroup type_") && kernel.contains(" sums;\n"), "{kernel}");
        assert!(kernel.contains("_mslBufferSizes own_sizes = {sizes[0], sizes[1]};"), "{kernel}");
        assert!(
            kernel.contains("Arguments own_arguments = *(device Arguments const*)arguments;"),
            "{kernel}"
        );
    }

    #[test]
    fn other_buffers_are_refused() {
        let error = standalone(
            "sum",
            &SUM.replace("x: array<f32>", "x: array<i32>")
                .replace("= x[", "= f32(x[")
                .replace("a.count)]", "a.count)])"),
        );
        assert_eq!(error, Err("the buffer x is no array of words or of f32".to_owned()));
    }
}
