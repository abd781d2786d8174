#include "qa/subject.h"

#include "model/compute_dtype.h"

namespace thimble {

const Tokenizer* Subject::tokenizer() {
  if (!tokenizer_) tokenizer_ = open_tokenizer(file);
  return tokenizer_.get();
}

Model& Subject::exact() {
  if (!exact_) exact_.emplace(make_model(file, context_, DType::f32));
  return *exact_;
}

Model& Subject::usual() {
  const DType dtype = compute_dtype(ComputeDType::automatic, context_.device());
  if (dtype == DType::f32) return exact();
  if (!usual_) usual_.emplace(make_model(file, context_, dtype));
  return *usual_;
}

}  // namespace thimble
