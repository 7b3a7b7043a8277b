// The C functions for computations that repeat (see cuda/replay.h), and for the comparison of their graphs.
#include <algorithm>

#include "core/graph.h"
#include "core/guard.h"
#include "mlx/transforms.h"

#ifdef MLXRS_CUDA
#include "cuda/replay.h"
#endif

struct mlxrs_replay_ {
#ifdef MLXRS_CUDA
  mlxrs::cuda::Replay replay;
#endif
};

extern "C" int mlxrs_replay_new(mlxrs_replay* res) {
  return mlxrs::guarded([&] { *res = new mlxrs_replay_; });
}

extern "C" int mlxrs_replay_free(mlxrs_replay replay) {
  return mlxrs::guarded([&] { delete replay; });
}

extern "C" int mlxrs_replay_eval(mlxrs_replay replay, const mlx_vector_array outputs, const mlx_vector_array inputs) {
  return mlxrs::guarded([&] {
    const auto& arrays = mlx_vector_array_get_(outputs);
#ifdef MLXRS_CUDA
    replay->replay.eval(arrays, mlx_vector_array_get_(inputs));
#else
    static_cast<void>(replay), static_cast<void>(inputs);
    mlx::core::async_eval(arrays);
#endif
  });
}

extern "C" bool mlxrs_replay_repeats(mlxrs_replay replay) {
#ifdef MLXRS_CUDA
  return replay->replay.repeats();
#else
  static_cast<void>(replay);
  return false;
#endif
}

extern "C" int mlxrs_replay_relaunch(
    mlx_vector_array* res, mlxrs_replay replay, const mlx_vector_array inputs, const mlx_vector_array written) {
  return mlxrs::guarded([&] {
    std::vector<mlx::core::array> roots;
#ifdef MLXRS_CUDA
    roots = replay->replay.relaunch(mlx_vector_array_get_(inputs), mlx_vector_array_get_(written));
#else
    static_cast<void>(replay), static_cast<void>(inputs), static_cast<void>(written);
#endif
    mlx_vector_array_set_(*res, std::move(roots));
  });
}

struct mlxrs_graph_ {
  mlxrs::Graph graph;
};

extern "C" int mlxrs_graph_new(mlxrs_graph* res, const mlx_vector_array outputs, mlx_stream s) {
  return mlxrs::guarded([&] {
    auto graph = mlxrs::graph_of(mlx_vector_array_get_(outputs), mlx_stream_get_(s));
    if (!graph) {
      throw std::invalid_argument("a graph with operations on another stream");
    }
    graph->heads.clear();
    *res = new mlxrs_graph_{std::move(*graph)};
  });
}

extern "C" int mlxrs_graph_free(mlxrs_graph graph) {
  return mlxrs::guarded([&] { delete graph; });
}

extern "C" int mlxrs_graph_is_same(bool* res, mlxrs_graph graph, mlxrs_graph other) {
  return mlxrs::guarded([&] { *res = mlxrs::is_same(graph->graph, other->graph); });
}

extern "C" int mlxrs_graph_other_inputs(size_t* res, mlxrs_graph graph, mlxrs_graph before, const mlx_vector_array inputs) {
  return mlxrs::guarded([&] {
    const auto& declared = mlx_vector_array_get_(inputs);
    const auto &now = graph->graph.values, &old = before->graph.values;
    if (now.size() != old.size()) {
      throw std::invalid_argument("graphs with different numbers of inputs");
    }
    *res = 0;
    for (size_t i = 0; i < now.size(); i++) {
      auto is_it = [&](const mlx::core::array& a) { return a.id() == now[i].id(); };
      *res += !mlxrs::is_at(before->graph.leaves[i], now[i]) && !mlxrs::is_same_number(old[i], now[i]) &&
          std::none_of(declared.begin(), declared.end(), is_it);
    }
  });
}
