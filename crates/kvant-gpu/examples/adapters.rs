//! Every adapter of this machine, a line each with tabs between what is known of it: for `cargo xtask gpu-check`.

fn main() {
    for report in kvant_gpu::adapters() {
        let subgroup = format!("subgroups of {} to {}", report.subgroup.0, report.subgroup.1);
        let memory = report.memory.map_or("memory not told".to_owned(), |bytes| format!("{bytes} bytes"));
        let unfit = report.unfit.map_or("runs kvant".to_owned(), |what| format!("unfit: {what}"));
        let binding = format!("bindings of {} bytes", report.binding_bytes);
        let kind = report.kind.name().to_owned();
        let fields =
            [report.name, kind, report.api.to_owned(), report.driver, subgroup, binding, memory, unfit];
        println!("{}", fields.join("\t"));
    }
}
