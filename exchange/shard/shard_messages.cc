#include "exchange/shard/shard_messages.h"

namespace capstan::exchange::shard {

v1::StepDecision DecisionMessage(const training::Decision& decision, const Held& held) {
  v1::StepDecision message;
  message.set_step(decision.step);
  message.set_apply(decision.apply);
  message.set_learning_rate(decision.learning_rate);
  message.set_stop(decision.stop);
  message.set_checkpoint(decision.checkpoint);
  message.set_evaluate(decision.evaluate);
  message.set_gradient_scale(decision.gradient_scale);
  message.set_loss_scale(decision.loss_scale);
  message.set_applied_steps(decision.applied_steps);
  message.set_clip_factor(decision.clip_factor);
  message.set_base_learning_rate(decision.base_learning_rate);
  if (decision.max_staleness.has_value()) message.set_max_staleness(*decision.max_staleness);
  for (const int64_t id : decision.order_ids) message.add_order_ids(id);
  if (held.version >= 0) message.set_held_version(held.version);
  for (const int32_t rank : held.slow_ranks) message.add_slow_ranks(rank);
  for (const training::TensorNorms& norms : decision.tensor_norms) {
    v1::TensorNorms* const of_tensor = message.add_tensor_norms();
    of_tensor->set_weights(norms.weights);
    of_tensor->set_direction(norms.direction);
  }
  return message;
}

DecisionArrived ReadDecision(int64_t lineage, const v1::StepDecision& message) {
  DecisionArrived event;
  event.lineage = lineage;
  training::Decision& decision = event.decision;
  decision.step = message.step();
  decision.apply = message.apply();
  decision.learning_rate = message.learning_rate();
  decision.stop = message.stop();
  decision.checkpoint = message.checkpoint();
  decision.evaluate = message.evaluate();
  decision.gradient_scale = message.gradient_scale();
  decision.loss_scale = message.loss_scale();
  decision.applied_steps = message.applied_steps();
  decision.clip_factor = message.clip_factor();
  decision.base_learning_rate = message.base_learning_rate();
  if (message.has_max_staleness()) decision.max_staleness = message.max_staleness();
  decision.order_ids.assign(message.order_ids().begin(), message.order_ids().end());
  if (message.has_held_version()) event.held.version = message.held_version();
  event.held.slow_ranks.assign(message.slow_ranks().begin(), message.slow_ranks().end());
  for (const v1::TensorNorms& norms : message.tensor_norms()) {
    decision.tensor_norms.push_back({norms.weights(), norms.direction()});
  }
  return event;
}

v1::ShardPart PartMessage(const SendPart& effect, int32_t shard) {
  v1::ShardPart message;
  message.set_step(effect.step);
  message.set_shard(shard);
  message.set_finite(effect.report.finite);
  for (const auto& [block, square_sum] : effect.report.squares) {
    v1::BlockSquares* const squares = message.add_squares();
    squares->set_first_chunk(block.first_chunk);
    squares->set_chunk_count(block.chunk_count);
    squares->set_square_sum(square_sum);
  }
  for (const training::PieceSquares& squares : effect.report.pieces) {
    v1::PieceSquares* const piece = message.add_pieces();
    piece->set_chunk(squares.chunk);
    piece->set_tensor(squares.tensor);
    piece->set_weights(squares.weights);
    piece->set_direction(squares.direction);
  }
  for (const int32_t rank : effect.readers.slow_ranks) message.add_slow_ranks(rank);
  message.set_held_in_use(effect.readers.held_in_use);
  return message;
}

PartArrived ReadPart(StreamId stream, const v1::ShardPart& message) {
  PartArrived event;
  event.stream = stream;
  event.step = message.step();
  event.shard = message.shard();
  event.report.finite = message.finite();
  for (const v1::BlockSquares& squares : message.squares()) {
    event.report.squares.push_back(
        {{squares.first_chunk(), squares.chunk_count()}, squares.square_sum()});
  }
  for (const v1::PieceSquares& piece : message.pieces()) {
    event.report.pieces.push_back(
        {piece.chunk(), piece.tensor(), piece.weights(), piece.direction()});
  }
  event.readers.slow_ranks.assign(message.slow_ranks().begin(), message.slow_ranks().end());
  event.readers.held_in_use = message.held_in_use();
  return event;
}

}  // namespace capstan::exchange::shard
