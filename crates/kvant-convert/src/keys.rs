//! Parameters by their names in `config.json` and in GGUF metadata, and what families say about themselves: tables for both
//! directions.

use kvant_model::description::Pairing;

/// How a parameter is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyKind {
    Size,
    Number,
    Flag,
}

use KeyKind::{Flag, Number, Size};

/// A parameter that only changes its name.
pub(crate) struct Parameter {
    /// In `config.json`, alternatives apart by `|`.
    pub config: &'static str,
    /// In GGUF, without the architecture's prefix.
    pub gguf: &'static str,
    pub kind: KeyKind,
    /// Architectures (in GGUF) that have it, apart by `|`; all where empty.
    pub only: &'static str,
}

const fn all(config: &'static str, gguf: &'static str, kind: KeyKind) -> Parameter {
    Parameter { config, gguf, kind, only: "" }
}

const fn only(config: &'static str, gguf: &'static str, kind: KeyKind, only: &'static str) -> Parameter {
    Parameter { config, gguf, kind, only }
}

const GRANITE: &str = "granite|granitehybrid";
const NEMOTRON: &str = "nemotron_h|nemotron_h_moe";

pub(crate) const PARAMETERS: &[Parameter] = &[
    all("max_position_embeddings|n_positions", "context_length", Size),
    all("hidden_size|n_embd", "embedding_length", Size),
    all("num_hidden_layers|n_layer", "block_count", Size),
    all("intermediate_size|n_inner|block_ff_dim", "feed_forward_length", Size),
    all("num_attention_heads|n_head", "attention.head_count", Size),
    all("num_key_value_heads", "attention.head_count_kv", Size),
    all("rms_norm_eps|norm_eps|block_norm_eps|layernorm_epsilon", "attention.layer_norm_rms_epsilon", Number),
    only("layer_norm_epsilon|rms_norm_eps", "attention.layer_norm_rms_epsilon", Number, NEMOTRON),
    all("norm_epsilon|layer_norm_eps|layer_norm_epsilon", "attention.layer_norm_epsilon", Number),
    all("attn_logit_softcapping", "attn_logit_softcapping", Number),
    all("final_logit_softcapping", "final_logit_softcapping", Number),
    only(
        "sliding_window_pattern|_sliding_window_pattern",
        "attention.sliding_window_pattern",
        Size,
        "gemma3",
    ),
    only("attention_value_scale", "attention.value_scale", Number, "mimo2"),
    only("embedding_multiplier", "embedding_scale", Number, GRANITE),
    only("residual_multiplier", "residual_scale", Number, GRANITE),
    only("attention_multiplier", "attention.scale", Number, GRANITE),
    only("logits_scaling", "logit_scale", Number, GRANITE),
    all("num_local_experts|num_experts|moe_num_experts|n_routed_experts", "expert_count", Size),
    all("num_experts_per_tok|moe_k|top_k_experts", "expert_used_count", Size),
    all("moe_intermediate_size", "expert_feed_forward_length", Size),
    all(
        "shared_expert_intermediate_size|shared_intermediate_size|moe_shared_expert_intermediate_size",
        "expert_shared_feed_forward_length",
        Size,
    ),
    all("n_shared_experts|moe_num_shared_experts", "expert_shared_count", Size),
    all("first_k_dense_replace|moe_layer_start_index|num_dense_layers", "leading_dense_block_count", Size),
    all("moe_layer_interval", "interleave_moe_layer_step", Size),
    all("n_group", "expert_group_count", Size),
    all("topk_group", "expert_group_used_count", Size),
    all("routed_scaling_factor", "expert_weights_scale", Number),
    all("norm_topk_prob", "expert_weights_norm", Flag),
    all("moe_latent_size", "moe_latent_size", Size),
    all("use_parallel_residual", "use_parallel_residual", Flag),
    all("q_lora_rank", "attention.q_lora_rank", Size),
    all("kv_lora_rank", "attention.kv_lora_rank", Size),
    all("num_kv_shared_layers", "attention.shared_kv_layers", Size),
    all("hidden_size_per_layer_input", "embedding_length_per_layer_input", Size),
    all("conv_L_cache", "shortconv.l_cache", Size),
    only("mamba_d_conv", "ssm.conv_kernel", Size, "granitehybrid|falcon-h1"),
    only("mamba_d_state", "ssm.state_size", Size, "granitehybrid|falcon-h1"),
    only("mamba_n_groups", "ssm.group_count", Size, "granitehybrid|falcon-h1"),
    only("mamba_n_heads", "ssm.time_step_rank", Size, "granitehybrid|falcon-h1"),
    only("mamba_d_ssm", "ssm.inner_size", Size, "falcon-h1"),
    only("conv_kernel", "ssm.conv_kernel", Size, NEMOTRON),
    only("ssm_state_size", "ssm.state_size", Size, NEMOTRON),
    only("n_groups", "ssm.group_count", Size, NEMOTRON),
    only("mamba_num_heads", "ssm.time_step_rank", Size, NEMOTRON),
    only("linear_conv_kernel_dim", "ssm.conv_kernel", Size, "qwen3next|qwen35|qwen35moe"),
    only("linear_key_head_dim", "ssm.state_size", Size, "qwen3next|qwen35|qwen35moe"),
    only("linear_num_key_heads", "ssm.group_count", Size, "qwen3next|qwen35|qwen35moe"),
    only("linear_num_value_heads", "ssm.time_step_rank", Size, "qwen3next|qwen35|qwen35moe"),
];

impl Parameter {
    /// Whether an architecture, by its name in GGUF, has it.
    pub fn is_of(&self, architecture: &str) -> bool {
        self.only.is_empty() || self.only.split('|').any(|own| own == architecture)
    }
}

/// The order of channels in heads that do not turn, by an architecture's name in GGUF: converters reorder all heads of a family.
pub(crate) fn still_pairing(architecture: &str) -> Pairing {
    match architecture {
        "granitehybrid" | "nemotron_h" | "nemotron_h_moe" | "smollm3" => Pairing::Neighbours,
        _ => Pairing::Halves,
    }
}

/// What a Hugging Face checkpoint of a family says that its GGUF files do not.
pub(crate) struct Family {
    /// Its `model_type`.
    pub config_name: &'static str,
    /// Its class in Transformers.
    pub class: &'static str,
    /// Names of parameters that are not the first of their alternatives.
    pub spellings: &'static [&'static str],
    /// What all released models have alike, as JSON.
    pub constants: &'static str,
}

const fn family(
    config_name: &'static str,
    class: &'static str,
    spellings: &'static [&'static str],
    constants: &'static str,
) -> Family {
    Family { config_name, class, spellings, constants }
}

const GPT2_NAMES: &[&str] = &["n_positions", "n_embd", "n_layer", "n_inner", "n_head", "layer_norm_epsilon"];
const NEMOTRON_NAMES: &[&str] =
    &["n_routed_experts", "moe_shared_expert_intermediate_size", "layer_norm_epsilon"];

pub(crate) const FAMILIES: &[Family] = &[
    family("deepseek_v2", "DeepseekV2ForCausalLM", &["n_routed_experts"], "{}"),
    family("deepseek_v3", "DeepseekV3ForCausalLM", &["n_routed_experts"], r#"{"scoring_func": "sigmoid"}"#),
    family("ernie4_5", "Ernie4_5ForCausalLM", &[], "{}"),
    family(
        "ernie4_5_moe",
        "Ernie4_5_MoeForCausalLM",
        &["moe_num_experts", "moe_k", "moe_layer_start_index", "moe_num_shared_experts"],
        "{}",
    ),
    family("exaone4", "Exaone4ForCausalLM", &[], "{}"),
    family("falcon_h1", "FalconH1ForCausalLM", &[], r#"{"mamba_norm_before_gate": false}"#),
    family("gemma", "GemmaForCausalLM", &[], "{}"),
    family("gemma2", "Gemma2ForCausalLM", &[], "{}"),
    family("gemma3_text", "Gemma3ForCausalLM", &[], "{}"),
    family("gemma4_text", "Gemma4ForCausalLM", &["num_experts", "top_k_experts"], "{}"),
    family("glm4_moe", "Glm4MoeForCausalLM", &["n_routed_experts"], "{}"),
    family("gpt2", "GPT2LMHeadModel", GPT2_NAMES, "{}"),
    family("gpt_neox", "GPTNeoXForCausalLM", &["layer_norm_eps"], "{}"),
    family("gpt_oss", "GptOssForCausalLM", &[], r#"{"swiglu_limit": 7.0}"#),
    family("granite", "GraniteForCausalLM", &[], "{}"),
    family("granitemoehybrid", "GraniteMoeHybridForCausalLM", &["shared_intermediate_size"], "{}"),
    family("hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", &[], "{}"),
    family(
        "lfm2",
        "Lfm2ForCausalLM",
        &["norm_eps", "block_ff_dim"],
        r#"{"block_auto_adjust_ff_dim": false}"#,
    ),
    family("lfm2_moe", "Lfm2MoeForCausalLM", &["norm_eps", "num_experts", "num_dense_layers"], "{}"),
    family("llama", "LlamaForCausalLM", &[], "{}"),
    family("minimax_m2", "MiniMaxM2ForCausalLM", &[], r#"{"scoring_func": "sigmoid"}"#),
    family("ministral3", "Ministral3ForCausalLM", &[], "{}"),
    family("mistral", "MistralForCausalLM", &[], "{}"),
    family("mistral4", "Mistral4ForCausalLM", &["n_routed_experts"], "{}"),
    family("mixtral", "MixtralForCausalLM", &[], "{}"),
    family("nemotron_h", "NemotronHForCausalLM", NEMOTRON_NAMES, "{}"),
    family("olmo2", "Olmo2ForCausalLM", &[], "{}"),
    family("olmo3", "Olmo3ForCausalLM", &[], "{}"),
    family("phi3", "Phi3ForCausalLM", &[], "{}"),
    family("qwen2", "Qwen2ForCausalLM", &[], "{}"),
    family("qwen2_moe", "Qwen2MoeForCausalLM", &["num_experts"], "{}"),
    family("qwen3", "Qwen3ForCausalLM", &[], "{}"),
    family("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", &["num_experts"], "{}"),
    family("qwen3_5_text", "Qwen3_5ForCausalLM", &[], "{}"),
    family("qwen3_moe", "Qwen3MoeForCausalLM", &["num_experts"], "{}"),
    family("qwen3_next", "Qwen3NextForCausalLM", &["num_experts"], "{}"),
    family("qwen3_vl", "Qwen3VLForConditionalGeneration", &[], "{}"),
    family("seed_oss", "SeedOssForCausalLM", &[], "{}"),
    family("smollm3", "SmolLM3ForCausalLM", &[], "{}"),
    family("starcoder2", "Starcoder2ForCausalLM", &["norm_epsilon"], "{}"),
];

impl Family {
    pub fn of(config_name: &str) -> Option<&'static Self> {
        FAMILIES.iter().find(|family| family.config_name == config_name)
    }

    /// Its name for a parameter.
    pub fn spelling(&self, parameter: &Parameter) -> &'static str {
        let mut names = parameter.config.split('|');
        let own = names.clone().find(|name| self.spellings.contains(name));
        own.or(names.next()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_model::arch::REGISTRY;

    #[test]
    fn every_family_is_one_that_is_read_and_its_names_are_parameters() {
        for family in FAMILIES {
            assert!(REGISTRY.iter().any(|known| known.config_name == family.config_name));
            assert!(serde_json::from_str::<serde_json::Value>(family.constants).unwrap().is_object());
            for name in family.spellings {
                let is_name = |parameter: &Parameter| parameter.config.split('|').any(|own| own == *name);
                assert!(PARAMETERS.iter().any(is_name), "{} {name}", family.config_name);
            }
        }
        let missing = REGISTRY.iter().filter(|known| Family::of(known.config_name).is_none());
        let missing: Vec<&str> = missing.map(|known| known.config_name).collect();
        assert_eq!(missing, ["gemma3n_text", "glm4_moe_lite", "mimo", "mimo_v2_flash"]);
    }
}
