#!/usr/bin/env python3
"""Style rules that compilers do not check.

    tidy.py [--build DIR]     checks the tree; with a build directory also what its objects export
    tidy.py --self-test       plants one violation of each rule and checks that it is found

Each rule is a function that yields (path, line, message). All of them together take under a second.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile
import typing

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ["server", "engine", "weights", "kernels", "config"]  # each includes only to its right
C_SUFFIXES = {".c", ".h", ".cc", ".cu", ".cuh"}
PRODUCT_SUFFIXES = {".c", ".cc", ".cu"}
TEXT_SUFFIXES = C_SUFFIXES | {".py", ".sh", ".txt", ".cmake", ".json", ".md", ".html",
                              ".css", ".js"}
NOT_OURS = {"build", "__pycache__", ".git", "corpus", "golden", "demo"}  # output and data

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 800
COLUMNS_MAX = 100

# One library, one door: header pattern -> the only paths that may include it.
DOORS = [
    (r"microhttpd\.h", r"server/http/\w+\.c"),
    (r"(sha2|memops)\.h", r"server/keys\.c"),
    (r"jansson\.h", r"config/jdoc\.c"),
    (r"yaml\.h", r"config/config_file\.c"),
    (r"sentencepiece\w*\.h", r"server/tokenizer/spm\.cc"),
    (r"oniguruma\.h", r"server/tokenizer/regex\.c"),
    (r"utf8proc\.h", r"server/tokenizer/nfc\.c"),
    (r"nccl\.h", r"(engine/comm/\w*nccl\w*\.c|kernels/cuda/.*)"),
    (r"mpi\.h", r"engine/comm/\w*mpi\w*\.c"),
    (r"(cuda|cublas|cudnn|nvrtc|nvml)\w*\.h", r"(kernels/cuda/.*|engine/comm/\w*nccl\w*\.c)"),
]
BANNED = ["sprintf", "vsprintf", "strcpy", "strcat", "strtok", "atoi", "rand", "alloca", "system",
          "gets"]

# Which test holds each product source to account. A source that is missing here fails.
TESTED_BY = {
    "config/base.c": "tests/test_config.c",
    "config/buf.c": "tests/test_config.c",
    "config/config_file.c": "tests/test_options.c tests/test_nomem.c tests/fuzz/fuzz_files.c",
    "config/dtype.c": "tests/test_config.c",
    "config/file.c": "tests/test_file.c tests/test_nomem.c",
    "config/jdoc.c": "tests/test_config.c tests/fuzz/fuzz_config.c tests/test_nomem.c",
    "config/log.c": "tests/test_log.c tests/blackbox/test_log.py",
    "config/family.c": "tests/test_family.c tests/test_model_config.c tests/fuzz/fuzz_config.c",
    "config/model_attention.c": "tests/test_model_config.c tests/fuzz/fuzz_config.c",
    "config/model_config.c": "tests/test_model_config.c tests/fuzz/fuzz_config.c",
    "config/model_quant.c": "tests/test_packed.c tests/test_fp8.c tests/fuzz/fuzz_config.c",
    "config/model_mixture.c": "tests/test_mixture.c tests/fuzz/fuzz_config.c",
    "config/model_global.c": "tests/test_family.c tests/fuzz/fuzz_config.c",
    "config/model_recurrent.c": "tests/test_family.c tests/fuzz/fuzz_config.c",
    "config/plugin.c": "tests/test_comm_mpi.c tests/test_comm.c tests/blackbox/test_mpi.py",
    "config/reader.c": "tests/test_model_config.c",
    "config/pooling.c": "tests/test_pooling.c tests/test_nomem.c "
                        "tests/blackbox/test_embeddings.py",
    "config/lora_config.c": "tests/test_lora_config.c tests/fuzz/fuzz_lora.c tests/test_nomem.c",
    "config/slice.c": "tests/test_slice.c tests/blackbox/test_health.py",
    "config/speculation.c": "tests/test_ngram.c tests/blackbox/test_speculation.py",
    "config/options.c": "tests/test_options.c tests/blackbox/test_startup.py",
    "config/options_environment.c": "tests/test_options.c",
    "config/options_help.c": "tests/test_options.c",
    "config/options_unknown.c": "tests/test_options.c",
    "engine/parallel/sampler.c": "tests/test_rank.c",
    "kernels/backend.c": "tests/test_kernels.c",
    "kernels/cpu/attend.c": "tests/test_attend.c",
    "kernels/cpu/cpu.c": "tests/test_kernels.c",
    "kernels/cpu/cpu_avx2.c": "tests/test_kernels.c",
    "kernels/cpu/cpu_avx512.c": "tests/test_kernels.c",
    "kernels/cpu/cpu_vnni.c": "tests/test_kernels.c",
    "kernels/cpu/cpu_bf16.c": "tests/test_linear_bf16.c",
    "kernels/cpu/cpu_neon.c": "tests/test_kernels.c",
    "kernels/cpu/cpu_dotprod.c": "tests/test_linear_int.c",
    "kernels/cpu/flush.h": "tests/test_linear_bf16.c",
    "kernels/cpu/cpu_generic.c": "tests/test_kernels.c",
    "kernels/cpu/draw.c": "tests/test_sample.c",
    "kernels/cpu/elect.c": "tests/test_elect.c",
    "kernels/cpu/layout.c": "tests/test_kernels.c",
    "kernels/cpu/layout_int.c": "tests/test_linear_int.c",
    "kernels/cpu/experts.c": "tests/test_experts.c",
    "kernels/cpu/head_linear.c": "tests/test_latent.c",
    "kernels/cpu/linear.c": "tests/test_kernels.c",
    "kernels/cpu/product.c": "tests/test_kernels.c",
    "kernels/cpu/pool.c": "tests/test_kernels.c",
    "kernels/cpu/recurrent.c": "tests/test_delta_rule.c",
    "kernels/cpu/rowops.c": "tests/test_kernels.c tests/test_joint_norm.c",
    "kernels/cpu/logprobs.c": "tests/test_sample.c",
    "kernels/cpu/rules.c": "tests/test_sample.c",
    "kernels/cpu/sample.c": "tests/test_sample.c",
    "kernels/cuda/act.cu": "tests/test_linear_out.c",
    "kernels/cuda/attend.cu": "tests/test_attend.c",
    "kernels/cuda/attend_decode.cu": "tests/test_attend.c tests/test_rope_attend.c",
    "kernels/cuda/attend_flash.cu": "tests/test_attend.c",
    "kernels/cuda/attend_latent.cu": "tests/test_device_latent.c",
    "kernels/cuda/attend_latent_plain.cu": "tests/test_device_latent.c",
    "kernels/cuda/attend_tile.cu": "tests/test_attend.c",
    "kernels/cuda/attend_wgmma.cu": "tests/test_attend.c",
    "kernels/cuda/blas.c": "tests/test_kernels.c",
    "kernels/cuda/cuda.c": "tests/test_kernels.c",
    "kernels/cuda/cuda_memory.c": "tests/test_kernels.c",
    "kernels/cuda/record.c": "tests/test_device.c",
    "kernels/cuda/report.c": "tests/test_device.c",
    "kernels/cuda/gemm.cu": "tests/test_kernels.c tests/test_deterministic.c",
    "kernels/cuda/gemv.cu": "tests/test_kernels.c",
    "kernels/cuda/gemv_fused.cu": "tests/test_linear_fused.c",
    "kernels/cuda/narrow.cu": "tests/test_kernels.c",
    "kernels/cuda/delta_rule.cu": "tests/test_device_recurrent.c",
    "kernels/cuda/elect.cu": "tests/test_elect.c",
    "kernels/cuda/experts.cu": "tests/test_experts.c",
    "kernels/cuda/head_linear.cu": "tests/test_device_latent.c",
    "kernels/cuda/linear.cu": "tests/test_kernels.c",
    "kernels/cuda/rope.cu": "tests/test_attend.c tests/test_device_latent.c",
    "kernels/cuda/route.cu": "tests/test_experts.c",
    "kernels/cuda/rowops.cu": "tests/test_kernels.c tests/test_joint_norm.c",
    "kernels/cuda/oneshot.cu": "tests/test_comm_oneshot.c",
    "kernels/cuda/sample.cu": "tests/test_sample.c",
    "kernels/host_memory.c": "tests/test_kernels.c tests/test_model.c",
    "kernels/host_memory_experts.c": "tests/test_experts.c",
    "kernels/module.c": "tests/blackbox/test_startup.py",
    "kernels/ref/ref.c": "tests/test_kernels.c",
    "kernels/ref/ref_attend.c": "tests/test_attend.c tests/test_joint_norm.c tests/test_latent.c",
    "kernels/ref/ref_experts.c": "tests/test_experts.c",
    "kernels/ref/ref_recurrent.c": "tests/test_delta_rule.c",
    "kernels/ref/ref_sample.c": "tests/test_sample.c",
    "weights/checkpoint.c": "tests/test_checkpoint.c tests/test_lora_apply.c tests/test_nomem.c "
        "tests/fuzz/fuzz_checkpoint.c",
    "weights/checkpoint_files.c": "tests/test_checkpoint.c tests/fuzz/fuzz_checkpoint.c",
    "weights/checkpoint_views.c": "tests/test_checkpoint_views.c tests/fuzz/fuzz_checkpoint.c",
    "weights/fp8.c": "tests/test_fp8.c tests/blackbox/test_fp8.py",
    "weights/gguf/gguf.c": "tests/test_gguf.c tests/test_gguf_wrong.c tests/test_nomem.c",
    "weights/gguf/gguf_blocks.c": "tests/test_gguf.c",
    "weights/gguf/gguf_parse.c": "tests/test_gguf_wrong.c tests/test_nomem.c "
                                 "tests/fuzz/fuzz_gguf.c",
    "weights/gguf/gguf_arch.c": "tests/blackbox/test_gguf.py",
    "weights/gguf/gguf_config.c": "tests/blackbox/test_gguf.py",
    "weights/gguf/gguf_convert.c": "tests/blackbox/test_gguf.py",
    "weights/gguf/gguf_gemma4.c": "tests/blackbox/test_gguf.py",
    "weights/gguf/gguf_join.c": "tests/blackbox/test_gguf.py",
    "weights/gguf/gguf_model.c": "tests/blackbox/test_gguf.py",
    "weights/gguf/gguf_order.c": "tests/blackbox/test_gguf.py "
                                 "tests/blackbox/test_gguf_recurrent.py",
    "weights/gguf/gguf_bpe.c": "tests/test_gguf_tokenizer.c "
                               "tests/blackbox/test_gguf_tokenizer.py",
    "weights/gguf/gguf_pre.c": "tests/test_gguf_tokenizer.c",
    "weights/gguf/gguf_put.c": "tests/blackbox/test_gguf.py",
    "weights/gguf/gguf_spm.c": "tests/test_gguf_tokenizer.c",
    "weights/gguf/gguf_tokenizer.c": "tests/test_gguf_tokenizer.c tests/test_nomem.c",
    "weights/gguf/gguf_vocab.c": "tests/test_gguf_tokenizer.c",
    "weights/intq.c": "tests/test_intq.c tests/blackbox/test_int_weights.py",
    "weights/mxfp4.c": "tests/test_mxfp4.c",
    "weights/packed.c": "tests/test_packed.c tests/blackbox/test_packed.py",
    "weights/lora.c": "tests/test_lora.c tests/test_nomem.c tests/blackbox/test_lora.py "
                      "tests/fuzz/fuzz_lora.c",
    "weights/lora_apply.c": "tests/test_lora_apply.c tests/test_nomem.c "
                            "tests/blackbox/test_lora.py tests/fuzz/fuzz_lora.c",
    "weights/loader.c": "tests/test_loader.c",
    "weights/loader_blocks.c": "tests/blackbox/test_gpt_oss.py",
    "weights/loader_packed.c": "tests/blackbox/test_packed.py",
    "weights/outdir.c": "tests/test_outdir.c",
    "weights/placement.c": "tests/test_placement.c",
    "weights/safetensors.c": "tests/test_safetensors.c tests/fuzz/fuzz_safetensors.c "
                             "tests/test_nomem.c",
    "weights/safetensors_writer.c": "tests/test_safetensors.c",
    "weights/shard.c": "tests/test_checkpoint.c tests/blackbox/test_files.py",
    "weights/synth.c": "tests/test_loader.c",
    "weights/spm_proto.c": "tests/test_loader.c tests/test_gguf_tokenizer.c",
    "weights/synth_tokenizer.c": "tests/test_loader.c",
    "engine/board.c": "tests/test_link.c tests/fuzz/fuzz_link.c",
    "engine/comm/comm.c": "tests/test_comm.c",
    "engine/comm/comm_alone.c": "tests/test_comm.c",
    "engine/comm/comm_device.c": "tests/test_comm.c",
    "engine/comm/comm_nccl.c": "tests/test_comm.c",
    "engine/comm/comm_nccl_oneshot.c": "tests/test_comm_oneshot.c",
    "engine/comm/comm_nccl_trial.c": "tests/test_comm.c tests/test_comm_oneshot.c",
    "engine/comm/comm_nccl_window.c": "tests/test_comm.c",
    "engine/comm/comm_mpi.c": "tests/test_comm_mpi.c tests/blackbox/test_mpi.py "
                              "tests/blackbox/test_mpi_network.py",
    "engine/comm/comm_remote.c": "tests/test_comm_mpi.c tests/blackbox/test_mpi.py",
    "engine/comm/comm_shm.c": "tests/test_comm.c",
    "engine/comm/comm_shm_meet.c": "tests/test_comm.c",
    "engine/cores.c": "tests/test_cores.c",
    "engine/costs.c": "tests/test_costs.c tests/test_engine.c",
    "engine/engine.c": "tests/test_engine.c tests/blackbox/test_faults.py",
    "engine/footprint.c": "tests/blackbox/test_files.py tests/blackbox/test_doctor.py "
                          "tests/test_device.c",
    "engine/group.c": "tests/blackbox/test_faults.py",
    "engine/kv.c": "tests/test_kv.c",
    "engine/states.c": "tests/test_sched_states.c",
    "engine/sequence_keep.c": "tests/test_sched_states.c",
    "engine/kv_groups.c": "tests/test_kv_groups.c",
    "engine/lifeline.c": "tests/blackbox/test_mpi.py",
    "engine/link.c": "tests/test_link.c tests/fuzz/fuzz_link.c",
    "engine/load_watch.c": "tests/test_load_watch.c tests/blackbox/test_loading.py",
    "engine/model/layout.c": "tests/test_model.c",
    "engine/model/layout_fill.c": "tests/test_model.c",
    "engine/model/rope.c": "tests/test_model.c",
    "engine/model/model.c": "tests/test_model.c",
    "engine/model/model_open.c": "tests/test_model.c tests/test_activations.c",
    "engine/model/model_bind.c": "tests/test_model.c",
    "engine/parallel/flow.c": "tests/test_modes.c tests/blackbox/test_modes.py",
    "engine/parallel/flow_costs.c": "tests/test_modes.c tests/test_price.c "
                                    "tests/blackbox/test_modes.py",
    "engine/parallel/groups.c": "tests/test_mesh.c",
    "engine/parallel/mesh.c": "tests/test_mesh.c tests/blackbox/test_layouts.py",
    "engine/parallel/moving.c": "tests/test_mlp.c tests/blackbox/test_layouts.py",
    "engine/parallel/parallel.c": "tests/test_modes.c tests/blackbox/test_modes.py",
    "engine/parallel/parallel_sizes.c": "tests/test_activations.c",
    "engine/parallel/plan.c": "tests/test_plan.c",
    "engine/parallel/plan_check.c": "tests/test_plan.c",
    "engine/parallel/plan_entry.c": "tests/test_plan.c tests/fuzz/fuzz_plans.c",
    "engine/parallel/plan_file.c": "tests/test_plan.c tests/fuzz/fuzz_plans.c",
    "engine/parallel/plan_read.c": "tests/test_plan.c tests/fuzz/fuzz_plans.c",
    "engine/parallel/price.c": "tests/test_price.c tests/fuzz/fuzz_files.c",
    "engine/parallel/price_measure.c": "tests/test_price.c",
    "engine/parallel/redistribute.c": "tests/test_redistribute.c tests/blackbox/test_layouts.py",
    "engine/parallel/redistribute_route.c": "tests/test_redistribute.c",
    "engine/parallel/spread.c": "tests/test_mesh.c tests/blackbox/test_layouts.py",
    "engine/ngram.c": "tests/test_ngram.c",
    "engine/quota.c": "tests/test_quota.c tests/blackbox/test_doctor.py",
    "engine/queue.c": "tests/test_sched.c",
    "engine/populate.c": "tests/test_populate.c tests/blackbox/test_memory.py",
    "engine/rank.c": "tests/test_rank.c tests/test_model.c tests/blackbox/test_faults.py",
    "engine/rank_process.c": "tests/blackbox/test_faults.py tests/blackbox/test_mpi.py",
    "engine/rank_state.c": "tests/test_model.c",
    "engine/rendezvous.c": "tests/test_rendezvous.c tests/blackbox/test_mpi.py "
        "tests/fuzz/fuzz_rendezvous.c",
    "engine/replay.c": "tests/test_device.c",
    "engine/grammar/grammar.c": "tests/test_grammar.c tests/blackbox/test_structures.py",
    "engine/grammar/guide.c": "tests/test_grammar.c tests/fuzz/fuzz_structure.c "
                              "tests/blackbox/test_structures.py",
    "engine/grammar/vocabulary.c": "tests/test_grammar.c",
    "engine/rank_loop.c": "tests/test_rank.c",
    "engine/request.c": "tests/test_sched.c",
    "engine/sched.c": "tests/test_sched.c tests/test_sched_pooled.c",
    "engine/sched_build.c": "tests/test_sched.c tests/test_sched_pooled.c",
    "engine/sched_draft.c": "tests/test_sched.c tests/blackbox/test_speculation.py",
    "engine/sequence.c": "tests/test_sched.c",
    "engine/step.c": "tests/test_step.c tests/fuzz/fuzz_step.c",
    "server/access.c": "tests/test_keys.c tests/blackbox/test_keys.py",
    "server/api/api_error.c": "tests/test_api.c",
    "server/api/body.c": "tests/test_api.c tests/fuzz/fuzz_api.c tests/test_nomem.c",
    "server/answer/answer.c": "tests/test_answer.c tests/test_answer_gemma.c "
                              "tests/fuzz/fuzz_answer.c tests/test_nomem.c "
                              "tests/blackbox/test_tools.py",
    "server/answer/answer_call.c": "tests/test_answer.c tests/test_call_tags.c "
                                   "tests/blackbox/test_tools.py",
    "server/answer/answer_message.c": "tests/test_answer.c tests/blackbox/test_harmony.py",
    "server/answer/answer_form.c": "tests/test_answer.c tests/test_chat.c "
                                   "tests/test_chat_open.c "
                                   "tests/blackbox/test_tools.py",
    "server/answer/call.c": "tests/test_answer.c tests/fuzz/fuzz_answer.c",
    "server/answer/call_gemma.c": "tests/test_answer_gemma.c tests/fuzz/fuzz_answer.c "
                                  "tests/blackbox/test_tools.py",
    "server/answer/call_tags.c": "tests/test_call_tags.c tests/fuzz/fuzz_answer.c "
                                 "tests/blackbox/test_tools.py",
    "server/answer/call_types.c": "tests/test_call_tags.c tests/blackbox/test_tools.py",
    "server/answer/call_value.c": "tests/test_call_tags.c tests/test_answer_gemma.c "
                                  "tests/fuzz/fuzz_answer.c",
    "server/answer/parts.c": "tests/test_answer_order.c tests/fuzz/fuzz_answer.c "
        "tests/test_nomem.c",
    "server/answer/harmony.c": "tests/test_answer.c tests/test_chat_open.c "
                               "tests/fuzz/fuzz_answer.c "
                               "tests/blackbox/test_harmony.py",
    "server/api/response_format.c": "tests/fuzz/fuzz_api.c tests/blackbox/test_structured.py",
    "server/api/tool_choice.c": "tests/test_chat.c tests/blackbox/test_tools.py",
    "server/api/chat.c": "tests/test_chat.c tests/test_fields.c tests/fuzz/fuzz_api.c",
    "server/api/chat_reply.c": "tests/test_chat.c tests/blackbox/test_chat.py",
    "server/api/chat_input.c": "tests/test_responses.c tests/test_messages.c "
                               "tests/fuzz/fuzz_api.c tests/test_nomem.c",
    "server/api/completion.c": "tests/test_api.c tests/fuzz/fuzz_api.c",
    "server/api/completion_prompt.c": "tests/test_api.c tests/fuzz/fuzz_api.c",
    "server/api/completion_reply.c": "tests/test_api.c",
    "server/api/content.c": "tests/test_chat.c tests/fuzz/fuzz_api.c "
                            "tests/blackbox/test_thoughts.py",
    "server/api/conversation.c": "tests/test_chat.c tests/fuzz/fuzz_api.c tests/test_nomem.c",
    "server/api/embedding.c": "tests/test_embedding.c tests/test_fields.c tests/test_nomem.c "
                              "tests/fuzz/fuzz_api.c "
                              "tests/blackbox/test_embeddings.py",
    "server/api/field.c": "tests/test_api.c tests/test_fields.c",
    "server/api/field_schema.c": "tests/test_fields.c",
    "server/api/logprobs.c": "tests/test_logprobs.c",
    "server/api/messages.c": "tests/test_messages.c tests/test_fields.c tests/fuzz/fuzz_api.c "
                             "tests/test_nomem.c",
    "server/api/messages_input.c": "tests/test_messages.c tests/fuzz/fuzz_api.c "
                                   "tests/test_nomem.c",
    "server/api/messages_reply.c": "tests/test_messages_reply.c tests/blackbox/test_messages.py",
    "server/api/prediction.c": "tests/blackbox/test_speculation.py",
    "server/api/openapi.c": "tests/test_fields.c",
    "server/api/responses.c": "tests/test_responses.c tests/test_fields.c tests/fuzz/fuzz_api.c "
                              "tests/test_nomem.c",
    "server/api/responses_input.c": "tests/test_responses.c tests/fuzz/fuzz_api.c "
                                    "tests/test_nomem.c",
    "server/api/responses_reply.c": "tests/test_responses_reply.c tests/blackbox/test_responses.py",
    "server/api/sampling.c": "tests/test_api.c tests/test_fields.c tests/fuzz/fuzz_api.c",
    "server/api/tokenize.c": "tests/test_fields.c tests/blackbox/test_tokenize.py",
    "server/grammar/json_array.c": "tests/blackbox/test_structures.py",
    "server/grammar/json_format.c": "tests/blackbox/test_structures.py",
    "server/grammar/json_keyword.c": "tests/fuzz/fuzz_structure.c "
                                     "tests/blackbox/test_structures.py",
    "server/grammar/json_literal.c": "tests/blackbox/test_structures.py",
    "server/grammar/json_names.c": "tests/blackbox/test_structures.py",
    "server/grammar/json_number.c": "tests/blackbox/test_structures.py",
    "server/grammar/json_object.c": "tests/blackbox/test_structures.py",
    "server/grammar/json_patterns.c": "tests/blackbox/test_structures.py",
    "server/grammar/json_schema.c": "tests/fuzz/fuzz_structure.c "
                                    "tests/blackbox/test_structures.py",
    "server/grammar/json_scope.c": "tests/blackbox/test_structures.py",
    "server/grammar/json_string.c": "tests/blackbox/test_structures.py",
    "server/grammar/json_text.c": "tests/blackbox/test_structures.py",
    "server/grammar/json_unique.c": "tests/blackbox/test_structures.py",
    "server/grammar/pattern.c": "tests/fuzz/fuzz_structure.c tests/blackbox/test_structures.py",
    "server/grammar/pattern_match.c": "tests/blackbox/test_structures.py",
    "server/grammar/pattern_tree.c": "tests/fuzz/fuzz_structure.c "
                                     "tests/blackbox/test_structures.py",
    "server/grammar/structure.c": "tests/blackbox/test_structures.py "
                                  "tests/blackbox/test_tools.py",
    "server/guides.c": "tests/blackbox/test_structured.py tests/test_nomem.c",
    "server/bench/batch.c": "tests/blackbox/test_batch.py",
    "server/bench/batch_ask.c": "tests/blackbox/test_batch.py",
    "server/bench/batch_ids.c": "tests/test_batch.c",
    "server/bench/batch_line.c": "tests/test_batch.c tests/test_nomem.c "
                                  "tests/blackbox/test_batch.py",
    "server/bench/batch_output.c": "tests/test_batch.c tests/blackbox/test_batch.py",
    "server/bench/child.c": "tests/blackbox/test_bench.py",
    "server/bench/chunk.c": "tests/test_bench.c tests/fuzz/fuzz_reply.c",
    "server/bench/lines.c": "tests/test_batch.c",
    "server/bench/load.c": "tests/blackbox/test_bench.py",
    "server/bench/offline.c": "tests/blackbox/test_bench.py",
    "server/bench/plot.c": "tests/test_bench.c tests/blackbox/test_bench.py",
    "server/bench/reply.c": "tests/test_bench.c tests/test_batch.c tests/fuzz/fuzz_reply.c",
    "server/bench/report.c": "tests/test_bench.c tests/blackbox/test_bench.py",
    "server/bench/samples.c": "tests/test_bench.c",
    "server/bench/target.c": "tests/test_bench.c tests/blackbox/test_bench.py",
    "server/bench/workload.c": "tests/test_bench.c tests/blackbox/test_bench.py",
    "server/chat_template.c": "tests/test_chat.c tests/test_chat_open.c "
                              "tests/blackbox/test_chat.py",
    "server/client.c": "tests/blackbox/test_complete.py tests/blackbox/test_chat_command.py",
    "server/cmd_batch.c": "tests/blackbox/test_batch.py",
    "server/cmd_bench.c": "tests/blackbox/test_bench.py",
    "server/cmd_chat.c": "tests/blackbox/test_chat_command.py",
    "server/cmd_complete.c": "tests/blackbox/test_complete.py",
    "server/cmd_convert.c": "tests/blackbox/test_files.py",
    "server/cmd_doctor.c": "tests/blackbox/test_doctor.py",
    "server/doctor/findings.c": "tests/blackbox/test_doctor.py",
    "server/doctor/machine.c": "tests/blackbox/test_doctor.py",
    "server/doctor/modules.c": "tests/blackbox/test_doctor.py",
    "server/cmd_health.c": "tests/blackbox/test_health.py",
    "server/cmd_inspect.c": "tests/blackbox/test_files.py",
    "server/cmd_plan.c": "tests/blackbox/test_files.py",
    "server/frontend.c": "tests/test_http.c",
    "server/health.c": "tests/test_http.c tests/blackbox/test_health.py",
    "server/http/http.c": "tests/test_http.c",
    "server/http/http_accept.c": "tests/test_guard.c tests/blackbox/test_web.py",
    "server/http/http_answer.c": "tests/test_http.c tests/blackbox/test_limits.py",
    "server/http/http_cors.c": "tests/test_guard.c tests/blackbox/test_keys.py",
    "server/http/http_gate.c": "tests/test_gate.c tests/blackbox/test_guard.py "
                               "tests/blackbox/test_limits.py",
    "server/http/http_guard.c": "tests/test_guard.c tests/fuzz/fuzz_guard.c "
                                "tests/blackbox/test_guard.py",
    "server/http/http_host.c": "tests/test_guard.c tests/blackbox/test_hosts.py",
    "server/http/http_id.c": "tests/test_http.c",
    "server/http/http_intake.c": "tests/test_intake.c tests/fuzz/fuzz_guard.c "
                                 "tests/blackbox/test_guard.py",
    "server/http/http_listen.c": "tests/test_http.c tests/blackbox/test_log.py",
    "server/http/http_log.c": "tests/blackbox/test_log.py",
    "server/http/http_peer.c": "tests/blackbox/test_limits.py",
    "server/http/http_refusal.c": "tests/blackbox/test_guard.py",
    "server/http/http_route.c": "tests/test_http.c",
    "server/http/http_watch.c": "tests/test_http.c",
    "server/job.c": "tests/test_http.c tests/test_alloc.c",
    "server/job_start.c": "tests/test_http.c tests/test_alloc.c",
    "server/keys.c": "tests/test_keys.c tests/blackbox/test_keys.py tests/test_nomem.c "
        "tests/fuzz/fuzz_files.c",
    "server/hub_cache.c": "tests/blackbox/test_hub_cache.py",
    "server/main.c": "tests/blackbox/test_startup.py",
    "server/metrics.c": "tests/test_http.c tests/blackbox/test_metrics.py",
    "server/notify.c": "tests/blackbox/test_health.py",
    "server/output.c": "tests/test_output.c tests/test_http.c tests/blackbox/test_stream.py",
    "server/remarks.c": "tests/test_log.c tests/blackbox/test_startup.py",
    "server/request_log.c": "tests/blackbox/test_log.py",
    "server/request_worker.c": "tests/test_request_worker.c tests/test_http.c",
    "server/route_chat.c": "tests/blackbox/test_chat.py tests/blackbox/test_responses.py "
                           "tests/blackbox/test_messages.py",
    "server/route_completion.c": "tests/test_http.c tests/test_alloc.c",
    "server/route_models.c": "tests/test_http.c",
    "server/route_page.c": "tests/blackbox/test_web.py",
    "server/route_tokenizer.c": "tests/test_http.c tests/blackbox/test_tokenize.py",
    "server/serve.c": "tests/blackbox/test_faults.py",
    "server/service.c": "tests/test_http.c",
    "server/task.c": "tests/test_http.c tests/blackbox/test_tokenize.py",
    "server/plan_costs.c": "tests/blackbox/test_modes.py",
    "server/plan_explain.c": "tests/blackbox/test_modes.py",
    "server/plan_modes.c": "tests/blackbox/test_modes.py",
    "server/setup.c": "tests/test_model.c tests/blackbox/test_files.py",
    "server/template/jinja.c": "tests/test_jinja.c tests/blackbox/test_jinja.py",
    "server/template/jinja_arena.c": "tests/test_jinja.c tests/blackbox/test_jinja.py",
    "server/template/jinja_call.c": "tests/test_jinja.c tests/blackbox/test_jinja.py",
    "server/template/jinja_compare.c": "tests/test_jinja.c tests/blackbox/test_jinja.py",
    "server/template/jinja_eval.c": "tests/test_jinja.c tests/blackbox/test_jinja.py",
    "server/template/jinja_exec.c": "tests/test_jinja.c tests/blackbox/test_jinja.py",
    "server/template/jinja_expr.c": "tests/test_jinja.c tests/blackbox/test_jinja.py",
    "server/template/jinja_filter.c": "tests/test_jinja.c tests/blackbox/test_jinja.py",
    "server/template/jinja_filter_items.c": "tests/test_jinja.c tests/blackbox/test_jinja.py",
    "server/template/jinja_global.c": "tests/test_jinja.c tests/blackbox/test_jinja.py",
    "server/template/jinja_lex.c": "tests/test_jinja.c tests/blackbox/test_jinja.py",
    "server/template/jinja_method.c": "tests/test_jinja.c tests/blackbox/test_jinja.py",
    "server/template/jinja_operate.c": "tests/test_jinja.c tests/blackbox/test_jinja.py",
    "server/template/jinja_parse.c": "tests/test_jinja.c tests/blackbox/test_jinja.py",
    "server/template/jinja_print.c": "tests/test_jinja.c tests/blackbox/test_jinja.py",
    "server/template/jinja_run.c": "tests/test_jinja.c tests/blackbox/test_jinja.py",
    "server/template/jinja_sort.c": "tests/test_jinja.c tests/blackbox/test_jinja.py",
    "server/template/jinja_string.c": "tests/test_jinja.c tests/blackbox/test_jinja.py",
    "server/template/jinja_test.c": "tests/test_jinja.c tests/blackbox/test_jinja.py",
    "server/template/jinja_tojson.c": "tests/test_jinja.c tests/blackbox/test_jinja.py",
    "server/template/jinja_tree.c": "tests/test_jinja.c tests/blackbox/test_jinja.py",
    "server/template/jinja_value.c": "tests/test_jinja.c tests/blackbox/test_jinja.py",
    "server/tokenizer/bpe.c": "tests/test_hf.c tests/fuzz/fuzz_hf_text.c "
        "tests/blackbox/test_tokenizer_json.py",
    "server/tokenizer/detok.c": "tests/test_tokenizer.c tests/fuzz/fuzz_output.c",
    "server/tokenizer/hf.c": "tests/test_hf.c tests/blackbox/test_tokenizer_json.py",
    "server/tokenizer/hf_file.c": "tests/test_hf.c tests/fuzz/fuzz_hf.c tests/test_nomem.c",
    "server/tokenizer/hf_json.c": "tests/test_hf.c",
    "server/tokenizer/hf_steps.c": "tests/test_hf.c tests/fuzz/fuzz_hf.c",
    "server/tokenizer/names.c": "tests/test_hf.c",
    "server/tokenizer/nfc.c": "tests/test_hf.c tests/blackbox/test_tokenizer_json.py",
    "server/tokenizer/regex.c": "tests/test_hf.c",
    "server/tokenizer/spm.cc": "tests/test_tokenizer.c",
    "server/tokenizer/spm_file.c": "tests/test_tokenizer.c tests/fuzz/fuzz_spm.c",
    "server/tokenizer/stop.c": "tests/test_tokenizer.c tests/fuzz/fuzz_output.c",
    "server/tokenizer/textstep.c": "tests/test_hf.c tests/blackbox/test_tokenizer_json.py",
    "server/tokenizer/tokenizer.c": "tests/test_tokenizer.c",
    "server/tokenizer/tokenizer_config.c": "tests/test_tokenizer.c tests/test_nomem.c "
        "tests/fuzz/fuzz_files.c",
    "config/utf8.c": "tests/test_tokenizer.c",
}

# In pieces, so that this file does not match itself.
UNDONE_WORD = "TO" "DO"
UNDONE = UNDONE_WORD + r"(?!\([^)]+\): )\b|\bFIX" r"ME\b"

# Symbols that may be exported without the prefix of their file: server/commands.h declares one
# function per command, each in a file of its own.
EXPORTS_ALLOWED = {"main", "commands_serve", "commands_plan", "commands_inspect", "commands_shard",
                   "commands_synth", "commands_doctor", "commands_health", "commands_bench",
                   "commands_complete", "commands_chat", "commands_convert", "commands_batch",
                   "module_entry",
                   "recv"}  # server/http/http_intake.c stands in for it


class Source(typing.NamedTuple):
    """A file of the tree, by its path relative to the root."""

    path: str
    text: str
    code: str  # of C: the text with comments and literals blanked, lines kept

    @property
    def name(self):
        return self.path.rsplit("/", 1)[-1]

    @property
    def folder(self):
        return self.path.split("/", 1)[0]

    @property
    def suffix(self):
        return pathlib.PurePath(self.path).suffix

    @property
    def is_c(self):
        return self.suffix in C_SUFFIXES

    @property
    def is_product(self):
        return self.folder in FOLDERS and self.suffix in PRODUCT_SUFFIXES


COMMENT_OR_LITERAL = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)


def blank(match):
    return re.sub(r"[^\n]", " ", match.group())


def read_tree(root):
    """The sources below root, in order of path."""
    sources = []
    for folder in FOLDERS + ["tests", "deploy", ".ci"]:
        for path in sorted((root / folder).rglob("*")):
            relative = path.relative_to(root)
            if NOT_OURS.intersection(relative.parts) or not path.is_file():
                continue
            if path.suffix in TEXT_SUFFIXES or folder == ".ci":
                text = path.read_text(encoding="utf-8")
                is_c = path.suffix in C_SUFFIXES
                code = COMMENT_OR_LITERAL.sub(blank, text) if is_c else ""
                sources.append(Source(relative.as_posix(), text, code))
    return sources


def matches(pattern, text):
    """(line number, match) of each place where pattern is found."""
    for match in re.finditer(pattern, text, re.MULTILINE):
        yield text.count("\n", 0, match.start()) + 1, match


# ---- rules ------------------------------------------------------------------------------------


def check_includes(sources):
    """Folder order, and includes written from the repository root."""
    for source in (s for s in sources if s.is_c):
        for line, match in matches(r'^#\s*include "([^"]+)"', source.text):
            target = match[1].split("/", 1)[0]
            if target not in FOLDERS + ["tests"]:
                yield source.path, line, f'include "{match[1]}" from the repository root'
            elif source.folder in FOLDERS and target == "tests":
                yield source.path, line, "product code includes tests"
            elif (source.folder in FOLDERS
                  and FOLDERS.index(target) < FOLDERS.index(source.folder)):
                yield source.path, line, f"{source.folder}/ must not include {target}/"


def check_doors(sources):
    """One library, one door; and no third-party type in our headers."""
    for source in (s for s in sources if s.is_c and s.folder in FOLDERS):
        for line, match in matches(r"^#\s*include <([^>]+)>", source.text):
            for header, door in DOORS:
                if not re.fullmatch(header, match[1].rsplit("/", 1)[-1]):
                    continue
                if not re.fullmatch(door, source.path):
                    yield source.path, line, f"<{match[1]}> is only for {door}"


def check_banned(sources):
    pattern = r"(?<![\w.>])(" + "|".join(BANNED) + r")\s*\("
    for source in (s for s in sources if s.is_c):
        for line, match in matches(pattern, source.code):
            yield source.path, line, f"banned call: {match[1]}"


def check_sizes(sources):
    """Length of files, lines and C functions (brace to brace, both in column 0)."""
    for source in sources:
        lines = source.text.split("\n")
        if source.is_c and len(lines) - 1 > FILE_LINES_MAX:
            yield source.path, 1, f"{len(lines) - 1} lines, at most {FILE_LINES_MAX}"
        for number, line in enumerate(lines, 1):
            if len(line) > COLUMNS_MAX and source.suffix not in (".md", ".json"):
                yield source.path, number, f"{len(line)} columns, at most {COLUMNS_MAX}"
        yield from long_functions(source)


def long_functions(source):
    start = None
    for number, line in enumerate(source.code.split("\n"), 1):
        if line.startswith("{"):
            start = number
        elif line.startswith("}") and start is not None:
            if number - start - 1 > FUNCTION_LINES_MAX:
                yield (source.path, start,
                       f"function of {number - start - 1} lines, at most {FUNCTION_LINES_MAX}")
            start = None


def types_of(parameters):
    """Of a list of parameters, without their names."""
    return tuple(re.sub(r"\w+$", "", part.strip()).strip() for part in parameters.split(","))


def check_twins(sources):
    """Functions of kernels that a linker takes for one: inline, of one name and of the same types,
    in several files. Which of them all files then call is chance."""
    first = {}
    for source in (s for s in sources if s.suffix in (".cu", ".cuh")):
        for line, match in matches(r"^(?:HOST_DEVICE|DEVICE)\b[^;{(]*?(\w+)\(([^;{]*?)\)\s*\{",
                                   source.code):
            before = source.code[:match.start()].rstrip()
            if before.endswith(">"):
                continue  # a template, whose types are its own
            key = match[1], types_of(match[2])
            where = first.setdefault(key, source.path)
            if where != source.path:
                yield source.path, line, f"{match[1]} is also, with the same types, in {where}"


def check_words(sources):
    """Paths of one machine, and work left undone without saying why."""
    for source in sources:
        for line, match in matches(r"/(?:home|root|work|Users|mnt)/\w+", source.text):
            yield source.path, line, f"absolute path: {match[0]}"
        for line, _ in matches(UNDONE, source.text):
            yield source.path, line, f"write {UNDONE_WORD}(reason): what"


def check_mapping(sources, tested_by):
    """Every product source has a test that names it, and the map names nothing that is gone."""
    paths = {source.path for source in sources}
    for source in (s for s in sources if s.is_product):
        if source.path not in tested_by:
            yield source.path, 1, "no test in TESTED_BY of tests/tidy.py"
    for product, tests in tested_by.items():
        for path in [product, *tests.split()]:
            if path not in paths:
                yield "tests/tidy.py", 1, f"TESTED_BY names {path}, which does not exist"


def check_used(sources):
    """A header that nothing includes is dead."""
    included = {match[1] for source in sources if source.is_c
                for _, match in matches(r'^#\s*include "([^"]+)"', source.text)}
    for source in sources:
        if source.folder in FOLDERS and source.suffix in (".h", ".cuh"):
            if source.path not in included:
                yield source.path, 1, "nothing includes this header"


def prefixes(stem):
    """The file's stem, or its leading words: comm_shm.c may export comm_shm_* and comm_*."""
    words = stem.split("_")
    return ["_".join(words[:count]) for count in range(1, len(words) + 1)]


def object_symbols(build):
    """(path of the source, symbol) of everything the product's objects export."""
    objects = [path for library in build.glob("CMakeFiles/tessera*.dir")
               for path in library.rglob("*.o")]
    if not objects:
        return
    command = ["nm", "-A", "-P", "-g", "--defined-only", *map(str, objects)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for line in listing.splitlines():
        where, symbol, kind = line.split(" ")[:3]
        if kind in "TDBRC" and not symbol.startswith(("_Z", "__")):
            source = re.sub(r"^.*/CMakeFiles/[^/]*\.dir/", "", where.rstrip(":"))
            yield source.removesuffix(".o"), symbol


def check_exports(build, root):
    """An object exports only names that begin with its file's name."""
    for path, symbol in object_symbols(build):
        if path.startswith("tests/"):
            continue  # it stands in for a library, under that library's names
        if not (root / path).exists() or symbol in EXPORTS_ALLOWED:
            continue  # a file that has been deleted since, or an allowed name
        stem = pathlib.PurePath(path).stem
        if not any(symbol == p or symbol.startswith(p + "_") for p in prefixes(stem)):
            yield path, 1, f"exports {symbol}, which does not begin with {stem}_"


def check_tree(root, tested_by, build=None):
    sources = read_tree(root)
    for rule in (check_includes, check_doors, check_banned, check_sizes, check_twins, check_words,
                 check_used):
        yield from rule(sources)
    yield from check_mapping(sources, tested_by)
    if build is not None:
        yield from check_exports(build, root)


# ---- self-test --------------------------------------------------------------------------------

PLANTED = {
    "kernels/a.c": ('#include "engine/e.h"\n', "must not include engine/"),
    "kernels/b.c": ('#include "b.h"\n', "from the repository root"),
    "config/c.c": ('#include "tests/t.h"\n', "product code includes tests"),
    "engine/d.c": ("#include <jansson.h>\n", "is only for config/jdoc"),
    "server/http/e.h": ("#include <microhttpd.h>\n", "is only for server/http/"),
    "config/f.c": ("int f(void)\n{\n    return system (0);\n}\n", "banned call: system"),
    "config/g.c": ("int g(void)\n{\n" + "    g();\n" * 71 + "}\n", "function of 71 lines"),
    "config/h.c": ("\n" * 801, "801 lines"),
    "config/i.c": ("/*" + "x" * 99 + "*/\n", "103 columns"),
    "config/j.c": (f"/* {UNDONE_WORD} later */\n", "(reason): what"),
    "config/k.c": ('"/ho' 'me/someone/file"\n', "absolute path"),
    "config/unmapped.c": ("int unmapped;\n", "no test in TESTED_BY"),
    "config/dead.h": ("int dead;\n", "nothing includes"),
    "kernels/l.cu": ("HOST_DEVICE int32_t twin(int32_t a)\n{\n    return a;\n}\n", ""),
    "kernels/m.cu": ("DEVICE int32_t twin(int32_t b)\n{\n    return 2 * b;\n}\n",
                     "twin is also, with the same types, in kernels/l.cu"),
    "config/export.c": ("int other(void);\nint other(void)\n{\n    return 0;\n}\n",
                        "exports other"),
}
CLEAN = {
    "config/clean.c": '#include <stdio.h>\n#include "config/clean.h"\n/* system() */\n'
                      'int clean_random(void)\n{\n    puts("rand()");\n    return 0;\n}\n',
    "config/clean.h": "int clean_random(void);\n",
}


def compile_planted(root):
    """Objects of the two files that compile, placed as CMake places them."""
    build = root / "build"
    for path in ("config/export.c", "config/clean.c"):
        target = build / "CMakeFiles/tessera_config.dir" / (path + ".o")
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cc", "-I", root, "-c", root / path, "-o", target], check=True)
    return build


def self_test():
    failures = []
    with tempfile.TemporaryDirectory() as scratch:
        root = pathlib.Path(scratch)
        texts = {**CLEAN, **{path: text for path, (text, _) in PLANTED.items()}}
        for path, text in {**texts, "tests/test_all.c": ""}.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        tested_by = {path: "tests/test_all.c" for path in texts
                     if path.endswith(".c") and "unmapped" not in path}
        tested_by["config/gone.c"] = "tests/test_all.c"
        found = list(check_tree(root, tested_by, compile_planted(root)))
    for path, (_, wanted) in PLANTED.items():
        if not any(where == path and wanted in message for where, _, message in found):
            failures.append(f"not found: {path}: {wanted}")
    if not any("config/gone.c" in message for _, _, message in found):
        failures.append("not found: config/gone.c in the map")
    failures += [f"false alarm: {item}" for item in found if item[0] in CLEAN]
    return failures


def main():
    parser = argparse.ArgumentParser(description="Checks style rules.")
    parser.add_argument("--build", type=pathlib.Path, help="build directory, for exported symbols")
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    if args.self_test:
        problems = self_test()
    else:
        found = check_tree(ROOT, TESTED_BY, args.build)
        problems = [f"{path}:{line}: {message}" for path, line, message in found]
    for problem in problems:
        print(problem)
    print(f"tidy: {len(problems)} problems" if problems else "tidy: clean")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
