#include "common/simt/trace.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "common/simt/block.hpp"
#include "common/simt/global_buffer.hpp"

namespace flashladder::simt {
namespace {

/// Operations on f32 that have been counted, as a Step has them. (A fused multiply-add is counted as an
/// addition and as a multiplication.)
Arithmetic arithmetic() {
  const Counters& c = running.counts;
  return {c.add + c.mul + c.div + c.max + c.log + c.flops_cuda_cores / 2 - c.fma, c.exp};
}

/// All counters of this OS thread one after the other: Counters, then those of buffers, then of shared
/// arrays.
void read_counters(std::vector<std::uint64_t>& all) {
  all.clear();
  for (const Counters::Field& field : Counters::fields()) all.push_back(running.counts.*field.member);
  for (const GlobalTraffic& one : running.cluster->global)
    all.insert(all.end(), {one.read_bytes, one.written_bytes, one.atomic_bytes});
  for (const SharedArray& one : running.cluster->shared.arrays())
    all.insert(all.end(), {one.traffic.read_bytes, one.traffic.written_bytes});
}

/// Their names.
std::vector<std::string> names_of_counters() {
  std::vector<std::string> names;
  for (const Counters::Field& field : Counters::fields()) names.emplace_back(field.name);
  for (std::size_t slot = 0; slot < running.cluster->global.size(); ++slot) {
    const std::string buffer = "global." + GlobalBuffer::label_of_slot(slot).name;
    for (const char* what : {".read_bytes", ".written_bytes", ".atomic_bytes"})
      names.push_back(buffer + what);
  }
  for (const SharedArray& array : running.cluster->shared.arrays()) {
    for (const char* what : {".read_bytes", ".written_bytes"})
      names.push_back("shared." + std::string(array.name) + what);
  }
  return names;
}

/// What has been computed where a kernel shows an intermediate of this name.
Step::Kind kind_of(const char* name) {
  switch (name[0]) {
    case 'S':
    case 'P':
      return Step::Kind::scores;
    case 'm':
    case 'l':
      return Step::Kind::softmax;
    default:
      return Step::Kind::output;
  }
}

bool is_shown(Step::Kind kind) {
  return kind == Step::Kind::scores || kind == Step::Kind::softmax || kind == Step::Kind::output;
}

void add(std::vector<Touched>& all, const Touched& more) {
  const auto same = std::ranges::find_if(
      all, [&](const Touched& one) { return one.slot == more.slot && one.use == more.use; });
  if (same == all.end()) {
    all.push_back(more);
  } else {
    same->first = std::min(same->first, more.first);
    same->last = std::max(same->last, more.last);
  }
}

/// What lanes of a warp did at one step is the step's.
void add_lane(Step& step, const Step& lane) {
  for (const auto& [counter, more] : lane.counted) {
    const auto same = std::ranges::find(step.counted, counter, &std::pair<unsigned, std::uint64_t>::first);
    if (same == step.counted.end()) {
      step.counted.emplace_back(counter, more);
    } else {
      same->second += more;
    }
  }
  for (const Touched& more : lane.touched) add(step.touched, more);
  step.shown.insert(step.shown.end(), lane.shown.begin(), lane.shown.end());
}

}  // namespace

Recorder::Recorder(BlockTrace& into, const Trace& trace, unsigned rank)
    : into_(into), trace_(trace), first_warp_(rank * running.cluster->block_threads / warp_size) {
  const unsigned threads = running.cluster->block_threads, warps = threads / warp_size;
  into_ = {};
  lanes_.resize(threads);
  steps_.resize(warps);
  part_of_.assign(warps, 0);
}

Recorder::Lane& Recorder::lane_of(const Thread& thread) {
  return lanes_[warp_of(thread) * warp_size + thread.lane];
}

unsigned Recorder::warp_of(const Thread& thread) const {
  return thread.warp - first_warp_;
}

void Recorder::resume() {
  read_counters(before_);
  arithmetic_ = arithmetic();
}

void Recorder::pause() {
  count();
}

void Recorder::count() {
  Lane& me = lane_of(*running.thread);
  const Arithmetic now = arithmetic();
  me.arithmetic.instructions += now.instructions - arithmetic_.instructions;
  me.arithmetic.exponentials += now.exponentials - arithmetic_.exponentials;
  arithmetic_ = now;
  read_counters(now_);
  before_.resize(now_.size());  // shared arrays that have been declared since
  me.counts.resize(now_.size());
  for (std::size_t i = 0; i < now_.size(); ++i) me.counts[i] += now_[i] - before_[i];
  std::swap(before_, now_);
}

Step Recorder::take(Step::Kind kind, std::uint64_t a, std::uint64_t b, std::uint64_t bytes, Where where) {
  count();
  const Thread& thread = *running.thread;
  Lane& me = lane_of(thread);
  Step step = {.kind = kind,
               .warp = warp_of(thread),
               .instructions = me.arithmetic.instructions,
               .exponentials = me.arithmetic.exponentials,
               .a = a,
               .b = b,
               .bytes = bytes,
               .where = where,
               .counted = {},
               .touched = std::exchange(me.touched, {}),
               .shown = std::exchange(me.shown, {})};
  for (unsigned i = 0; i < me.counts.size(); ++i)
    if (me.counts[i] != 0) step.counted.emplace_back(i, std::exchange(me.counts[i], 0));
  me.arithmetic = {};
  return step;
}

void Recorder::push(unsigned warp, Step step) {
  steps_[warp].push_back(into_.steps.size());
  into_.steps.push_back(std::move(step));
}

/// The warp's last step of this kind at the same place; nullptr: there is none.
Step* Recorder::find(unsigned warp, const Step& like) {
  for (auto at = steps_[warp].rbegin(); at != steps_[warp].rend(); ++at) {
    Step& step = into_.steps[*at];
    if (step.kind == like.kind && step.a == like.a && step.b == like.b) return &step;
  }
  return nullptr;
}

/// Finds the steps of a lane among those of its warp. One that is not there, because the first lane went
/// another way, goes with the next one that is.
void Recorder::settle(unsigned warp, Lane& lane) {
  for (std::size_t count = 1; count <= lane.ahead.size();) {
    const Step& mine = lane.ahead[count - 1];
    std::size_t found = lane.next;
    while (found < steps_[warp].size() &&
           (step_of(warp, found).kind != mine.kind || step_of(warp, found).a != mine.a))
      ++found;
    if (found == steps_[warp].size()) {
      ++count;
      continue;
    }
    for (; count > 0; --count) {
      add_lane(step_of(warp, found), lane.ahead.front());
      lane.ahead.pop_front();
    }
    count = 1;
    lane.next = found + 1;
  }
}

void Recorder::note(Step::Kind kind, std::uint64_t a, std::uint64_t b, std::uint64_t bytes, Where where) {
  const Thread& thread = *running.thread;
  Lane& me = lane_of(thread);
  const unsigned warp = warp_of(thread), first = warp * warp_size;
  std::vector<std::size_t>& steps = steps_[warp];
  Step step = take(kind, a, b, bytes, where);
  const bool goes_on = is_shown(kind) && me.last == kind;  // one step, which shows many elements
  me.last = kind;
  if (kind == Step::Kind::load || kind == Step::Kind::mbarrier_init) {
    push(warp, std::move(step));
  } else if (kind == Step::Kind::mbarrier_arrive) {
    if (Step* same = find(warp, step)) {  // each lane may arrive: for the warp it is one step
      add_lane(*same, step);
    } else {
      push(warp, std::move(step));
    }
  } else if (thread.lane == 0 && goes_on) {
    Step& last = into_.steps[steps.back()];
    last.instructions += step.instructions;
    last.exponentials += step.exponentials;
    last.where = where;
    add_lane(last, step);
  } else if (thread.lane == 0) {
    push(warp, std::move(step));
  } else if (goes_on && !me.ahead.empty()) {
    add_lane(me.ahead.back(), step);
  } else if (goes_on) {
    add_lane(step_of(warp, me.next - 1), step);
  } else {
    me.ahead.push_back(std::move(step));
    settle(warp, me);
  }
  if (thread.lane != 0) return;
  for (unsigned lane = 1; lane < warp_size; ++lane) settle(warp, lanes_[first + lane]);
}

void Recorder::touch(std::size_t slot, GlobalMarks::Use use, std::int64_t byte, std::int64_t bytes) {
  add(lane_of(*running.thread).touched, {slot, use, byte, byte + bytes - 1});
}

void Recorder::show(const char* name, std::int64_t head, int row, int column, float value, Where where) {
  const Thread& thread = *running.thread;
  const Step::Kind kind = kind_of(name);
  if (kind != Step::Kind::scores) {
    if (head == trace_.head && row == trace_.row) lane_of(thread).shown.push_back({name, column, value});
  } else {
    const unsigned warp = warp_of(thread);
    std::size_t& part = part_of_[warp];
    if (part >= into_.parts.size() || into_.parts[part].warp != warp ||
        into_.parts[part].tile != thread.tiles || into_.parts[part].head != head) {
      const auto same = std::ranges::find_if(into_.parts, [&](const TilePart& one) {
        return one.warp == warp && one.tile == thread.tiles && one.head == head;
      });
      part = static_cast<std::size_t>(same - into_.parts.begin());
      if (same == into_.parts.end())
        into_.parts.push_back({warp, thread.tiles, head, row, row, column, column});
    }
    TilePart& mine = into_.parts[part];
    mine.first_row = std::min(mine.first_row, row);
    mine.last_row = std::max(mine.last_row, row);
    mine.first_key = std::min(mine.first_key, column);
    mine.last_key = std::max(mine.last_key, column);
  }
  note(kind, 0, 0, 0, where);
}

void Recorder::finish(const Block& block) {
  const Cluster& cluster = *running.cluster;
  for (unsigned t = 0; t < cluster.block_threads; ++t) {
    Lane& lane = lanes_[t];
    const unsigned warp = t / warp_size;
    settle(warp, lane);
    if (steps_[warp].empty()) continue;
    for (const Step& step : lane.ahead)
      add_lane(step_of(warp, std::min(lane.next, steps_[warp].size() - 1)), step);
  }
  into_.masked = block.masked;
  into_.counters = names_of_counters();
  for (std::size_t slot = 0; slot < cluster.global.size(); ++slot)
    into_.buffers.push_back(GlobalBuffer::label_of_slot(slot));
  into_.shared_bytes = cluster.shared.bytes();
  for (const SharedArray& array : cluster.shared.arrays())
    if (cluster.shared.rank_of(array.offset) == block.rank)
      into_.shared.push_back(
          {array.name, array.bytes, array.offset - block.rank * cluster.shared.stride()});
}

void note(Step::Kind kind, std::uint64_t a, std::uint64_t b, std::uint64_t bytes, Where where) {
  if (running.trace != nullptr) running.trace->note(kind, a, b, bytes, where);
}

void show_to_trace(const char* name, std::int64_t head, int row, int column, float value, Where where) {
  if (running.trace != nullptr) running.trace->show(name, head, row, column, value, where);
}

// --- as JSON

namespace {

/// The number of a text among those of a table, which gets it where it is new.
std::size_t number_in(std::vector<std::string>& table, const std::string& text) {
  const auto found = std::ranges::find(table, text);
  if (found != table.end()) return static_cast<std::size_t>(found - table.begin());
  table.push_back(text);
  return table.size() - 1;
}

/// A file with its folder alone: the same on every machine.
std::string short_name(const std::string& file) {
  const std::size_t slash = file.rfind('/');
  const std::size_t before = slash == file.npos || slash == 0 ? file.npos : file.rfind('/', slash - 1);
  return before == file.npos ? file : file.substr(before + 1);
}

/// [one, another], of what `print` makes of each.
template <class Range, class Print>
std::string list(const Range& range, Print print) {
  std::string text = "[";
  for (const auto& one : range) {
    if (text.size() > 1) text += ',';
    text += print(one);
  }
  return text + ']';
}

std::string quoted(std::string text) {
  std::erase_if(text, [](char c) { return c == '"' || c == '\\' || static_cast<unsigned char>(c) < ' '; });
  return '"' + text + '"';
}

std::string number(float value) {
  if (!std::isfinite(value)) return "null";
  char text[32];
  std::snprintf(text, sizeof text, "%.5g", static_cast<double>(value));
  return text;
}

/// Numbers with commas between.
template <class... Numbers>
std::string row(Numbers... numbers) {
  std::string text;
  ((text += (text.empty() ? "" : ",") + std::to_string(numbers)), ...);
  return text;
}

std::string steps_json(const BlockTrace& block, std::vector<std::string>& files,
                       std::vector<std::string>& counters) {
  std::vector<std::size_t> number_of;
  for (const std::string& name : block.counters) number_of.push_back(number_in(counters, name));
  return list(block.steps, [&](const Step& step) {
    return '[' +
           row(static_cast<int>(step.kind), step.warp, number_in(files, short_name(step.where.file)),
               step.where.line, step.instructions, step.exponentials, step.a, step.b, step.bytes) +
           ',' +
           list(step.counted, [&](const auto& one) { return row(number_of[one.first], one.second); }) +
           ',' +
           list(step.touched,
                [](const Touched& one) {
                  return row(one.slot, static_cast<int>(one.use), one.first, one.last);
                }) +
           ',' +
           list(step.shown,
                [](const Shown& one) {
                  return quoted(one.name) + ',' + row(one.column) + ',' + number(one.value);
                }) +
           ']';
  });
}

}  // namespace

std::string to_json(const Trace& trace) {
  std::vector<std::string> files, counters;
  const auto buffer = [](const GlobalBuffer::Label& one) {
    return '[' + quoted(one.name) + ',' + row(one.element_bytes, one.elements) + ']';
  };
  const auto shared = [](const SharedPart& one) {
    return '[' + quoted(one.name) + ',' + row(one.bytes, one.offset) + ']';
  };
  const auto part = [](const TilePart& one) {
    return '[' +
           row(one.warp, one.tile, one.head, one.first_row, one.last_row, one.first_key, one.last_key) +
           ']';
  };
  const auto block_json = [&](const BlockTrace& block) {
    std::vector<std::size_t> masked;
    for (std::size_t tile = 0; tile < block.masked.size(); ++tile)
      if (block.masked[tile]) masked.push_back(tile);
    return R"({"steps":)" + steps_json(block, files, counters) + R"(,"parts":)" + list(block.parts, part) +
           R"(,"masked":)" + list(masked, [](std::size_t tile) { return row(tile); }) + '}';
  };
  const std::string launches = list(trace.launches, [&](const LaunchTrace& launch) {
    const BlockTrace nothing;
    const BlockTrace* any = &nothing;  // all are alike in what follows, but for those that did not run
    for (const BlockTrace& block : launch.blocks)
      if (!block.counters.empty()) any = &block;
    return R"({"kernel":)" + quoted(launch.kernel) + R"(,"grid":[)" +
           row(launch.grid.x, launch.grid.y, launch.grid.z) + R"(],"warps":)" + row(launch.warps) +
           R"(,"shared_bytes":)" + row(any->shared_bytes) + R"(,"shared":)" + list(any->shared, shared) +
           R"(,"buffers":)" + list(any->buffers, buffer) + R"(,"blocks":)" +
           list(launch.blocks, block_json) + '}';
  });
  return R"({"format":1,"names":)" + list(Step::names, quoted) + R"(,"multiprocessors":)" +
         row(multiprocessors) + R"(,"head":)" + row(trace.head) + R"(,"row":)" + row(trace.row) +
         R"(,"files":)" + list(files, quoted) + R"(,"counters":)" + list(counters, quoted) +
         R"(,"launches":)" + launches + "}";
}

}  // namespace flashladder::simt
