//! Short names, as people coming from Ollama type them: `family:size`.
//!
//! A model whose bytes are pinned stands in [`KNOWN`](crate::KNOWN). The names here stand for a repository of GGUF files and one
//! quantisation of it: what that repository holds may change, and where no hub could be reached when this table was written, a line is
//! *unverified*.

/// A name for a repository on the Hugging Face hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShortName {
    /// What comes before the colon.
    pub family: &'static str,
    /// What comes after it. The first line of a family is what the bare family stands for.
    pub tag: &'static str,
    /// Repository.
    pub repo: &'static str,
    /// The quantisation, as its file is called.
    pub quant: &'static str,
    /// Whether someone has fetched and run it under this name.
    pub is_verified: bool,
}

const fn line(family: &'static str, tag: &'static str, repo: &'static str, quant: &'static str) -> ShortName {
    ShortName { family, tag, repo, quant, is_verified: false }
}

/// The table. Every model in it is of an architecture that kvant runs.
pub const SHORT_NAMES: [ShortName; 47] = [
    line("qwen3", "8b", "Qwen/Qwen3-8B-GGUF", "Q4_K_M"),
    line("qwen3", "0.6b", "Qwen/Qwen3-0.6B-GGUF", "Q8_0"),
    line("qwen3", "1.7b", "Qwen/Qwen3-1.7B-GGUF", "Q8_0"),
    line("qwen3", "4b", "Qwen/Qwen3-4B-GGUF", "Q4_K_M"),
    line("qwen3", "14b", "Qwen/Qwen3-14B-GGUF", "Q4_K_M"),
    line("qwen3", "32b", "Qwen/Qwen3-32B-GGUF", "Q4_K_M"),
    line("qwen3", "30b-a3b", "Qwen/Qwen3-30B-A3B-GGUF", "Q4_K_M"),
    line("qwen3-coder", "30b", "unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF", "Q4_K_M"),
    line("qwen2.5", "7b", "bartowski/Qwen2.5-7B-Instruct-GGUF", "Q4_K_M"),
    line("qwen2.5", "0.5b", "Qwen/Qwen2.5-0.5B-Instruct-GGUF", "q4_k_m"),
    line("qwen2.5", "1.5b", "Qwen/Qwen2.5-1.5B-Instruct-GGUF", "q4_k_m"),
    line("qwen2.5", "3b", "Qwen/Qwen2.5-3B-Instruct-GGUF", "q4_k_m"),
    line("qwen2.5", "14b", "bartowski/Qwen2.5-14B-Instruct-GGUF", "Q4_K_M"),
    line("qwen2.5", "32b", "bartowski/Qwen2.5-32B-Instruct-GGUF", "Q4_K_M"),
    line("qwen2.5-coder", "7b", "bartowski/Qwen2.5-Coder-7B-Instruct-GGUF", "Q4_K_M"),
    line("qwen2.5-coder", "0.5b", "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", "q4_k_m"),
    line("qwen2.5-coder", "1.5b", "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", "q4_k_m"),
    line("qwen2.5-coder", "14b", "bartowski/Qwen2.5-Coder-14B-Instruct-GGUF", "Q4_K_M"),
    line("qwen2.5-coder", "32b", "bartowski/Qwen2.5-Coder-32B-Instruct-GGUF", "Q4_K_M"),
    line("llama3.2", "3b", "bartowski/Llama-3.2-3B-Instruct-GGUF", "Q4_K_M"),
    line("llama3.2", "1b", "bartowski/Llama-3.2-1B-Instruct-GGUF", "Q4_K_M"),
    line("llama3.1", "8b", "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", "Q4_K_M"),
    line("llama3.1", "70b", "bartowski/Meta-Llama-3.1-70B-Instruct-GGUF", "Q4_K_M"),
    line("llama3.3", "70b", "bartowski/Llama-3.3-70B-Instruct-GGUF", "Q4_K_M"),
    line("gemma3", "4b", "ggml-org/gemma-3-4b-it-GGUF", "Q4_K_M"),
    line("gemma3", "270m", "ggml-org/gemma-3-270m-it-GGUF", "Q8_0"),
    line("gemma3", "1b", "ggml-org/gemma-3-1b-it-GGUF", "Q4_K_M"),
    line("gemma3", "12b", "ggml-org/gemma-3-12b-it-GGUF", "Q4_K_M"),
    line("gemma3", "27b", "ggml-org/gemma-3-27b-it-GGUF", "Q4_K_M"),
    line("phi4", "14b", "bartowski/phi-4-GGUF", "Q4_K_M"),
    line("phi4-mini", "3.8b", "bartowski/microsoft_Phi-4-mini-instruct-GGUF", "Q4_K_M"),
    line("mistral", "7b", "bartowski/Mistral-7B-Instruct-v0.3-GGUF", "Q4_K_M"),
    line("mistral-nemo", "12b", "bartowski/Mistral-Nemo-Instruct-2407-GGUF", "Q4_K_M"),
    line("mistral-small", "24b", "bartowski/Mistral-Small-24B-Instruct-2501-GGUF", "Q4_K_M"),
    line("deepseek-r1", "8b", "unsloth/DeepSeek-R1-0528-Qwen3-8B-GGUF", "Q4_K_M"),
    line("deepseek-r1", "1.5b", "bartowski/DeepSeek-R1-Distill-Qwen-1.5B-GGUF", "Q4_K_M"),
    line("deepseek-r1", "7b", "bartowski/DeepSeek-R1-Distill-Qwen-7B-GGUF", "Q4_K_M"),
    line("deepseek-r1", "14b", "bartowski/DeepSeek-R1-Distill-Qwen-14B-GGUF", "Q4_K_M"),
    line("deepseek-r1", "32b", "bartowski/DeepSeek-R1-Distill-Qwen-32B-GGUF", "Q4_K_M"),
    line("gpt-oss", "20b", "ggml-org/gpt-oss-20b-GGUF", "mxfp4"),
    line("gpt-oss", "120b", "ggml-org/gpt-oss-120b-GGUF", "mxfp4"),
    line("smollm2", "1.7b", "bartowski/SmolLM2-1.7B-Instruct-GGUF", "Q4_K_M"),
    line("smollm2", "360m", "bartowski/SmolLM2-360M-Instruct-GGUF", "Q8_0"),
    line("smollm3", "3b", "ggml-org/SmolLM3-3B-GGUF", "Q4_K_M"),
    line("granite4", "1b", "ibm-granite/granite-4.0-1b-GGUF", "Q4_K_M"),
    line("olmo2", "7b", "allenai/OLMo-2-1124-7B-Instruct-GGUF", "Q4_K_M"),
    line("starcoder2", "3b", "second-state/StarCoder2-3B-GGUF", "Q4_K_M"),
];

impl ShortName {
    /// The line for `family`, `family:tag` or `family:latest`.
    pub fn find(text: &str) -> Option<&'static Self> {
        let text = text.to_ascii_lowercase();
        let (family, tag) = text.split_once(':').unwrap_or((&text, "latest"));
        SHORT_NAMES.iter().find(|line| line.family == family && (line.tag == tag || tag == "latest"))
    }

    /// `family:tag`.
    pub fn name(&self) -> String {
        format!("{}:{}", self.family, self.tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelName;

    #[test]
    fn a_bare_family_is_its_first_line() {
        let repo = |text: &str| ShortName::find(text).map(|line| line.repo);
        assert_eq!(repo("qwen3"), repo("Qwen3:8B"));
        assert_eq!(repo("qwen3:latest"), repo("qwen3:8b"));
        assert_ne!(repo("qwen3:0.6b"), repo("qwen3"));
        assert_eq!(repo("qwen3:7b"), None);
        assert_eq!(repo("nothing"), None);
    }

    #[test]
    fn every_line_is_a_name_of_its_own_for_a_repository() {
        for (at, line) in SHORT_NAMES.iter().enumerate() {
            let plain = format!("{}:{}", line.repo, line.quant);
            assert_eq!(ModelName::parse(&plain).unwrap().to_string(), plain);
            assert!(SHORT_NAMES[..at].iter().all(|other| other.name() != line.name()), "{}", line.name());
        }
    }
}
