# shellcheck shell=bash
# What a verb needs before it can run: packages, the Python environment, the build. Sourced by ./ladder, which sets
# root, the folder of the repository, and needs, the groups of packages of the verb. Everything is said on stderr:
# stdout belongs to the verb (./ladder list --json).
: "${root:?is set by ./ladder}"
build=$root/build/release
state=$root/build/setup # logs, and what could not be had, so that it is not tried again at each call
venv=$root/.venv
requirements=$root/common/setup/requirements.txt
course_requirements=$root/common/setup/requirements-course.txt
needs=''

say() { printf '%s\n' "$*" >&2; }
# The exit status is 1 where what was asked for is done and has failed, and 2 where it could not be done.
fail() { say "ladder: $*"; exit 2; }

# One ./ladder at a time sets up in this folder. Taken on file descriptor 9, which no child inherits.
lock_setup() {
  [[ -z ${locked-} ]] || return 0
  { mkdir -p "$state" && touch "$state/lock"; } 2>/dev/null ||
    fail "cannot write into $root/build: call ./ladder as its owner, or clone FlashLadder into a folder of your own."
  exec 9>"$state/lock" && locked=yes
  command -v flock >/dev/null || return 0
  flock -n 9 || { say "Another ./ladder is setting up in this folder: waiting for it."; flock 9; }
}
unlock_setup() { exec 9>&-; }

# quietly LOG MESSAGE COMMAND...: runs a step with its output in build/setup/LOG.log. A step that ends within a second
# says nothing; a longer one says MESSAGE, and shows the newest line of its log while it goes on.
quietly() {
  local log=$state/$1.log message=$2 status watcher
  shift 2
  : >"$log"
  watch_step "$log" "$message" 9>&- &
  watcher=$!
  "$@" >"$log" 2>&1 </dev/null 9>&-
  status=$?
  kill "$watcher" 2>/dev/null
  wait "$watcher" 2>/dev/null
  [[ ! -t 2 ]] || printf '\r\033[K' >&2
  return "$status"
}
watch_step() {
  local log=$1 seconds=1 newest
  sleep 1 &>/dev/null
  say "$2"
  # It ends with the script also when an interrupt ends the script, which background jobs do not get.
  while kill -0 $$ 2>/dev/null; do
    newest=$(tail -c 400 "$log" | tr '\r' '\n' | grep -av '^ *$' | tail -n 1 | cut -c 1-90)
    if [[ -t 2 ]]; then
      printf '\r\033[K  %d s: %s' "$seconds" "$newest" >&2
    elif ((seconds % 60 == 0)); then
      say "  $seconds s: $newest"
    fi
    sleep 1 &>/dev/null
    seconds=$((seconds + 1))
  done
}
# The end of a log, without ninja's lines on what went well.
show_log() { grep -avE '^\[[0-9]+/[0-9]+\] ' "$state/$1.log" | tail -n 120 >&2; }

# --- Packages -------------------------------------------------------------------------------------------------

# Probes of packages.txt.
compiler() {
  local cxx
  read -ra cxx <<<"${CXX:-c++}"
  "${cxx[@]}" -std=c++20 -E -x c++ - <<<$'#if __cplusplus < 202002L || !__has_include(<span>)\n#error\n#endif'
}
recent_cmake() {
  local version
  version=$(cmake --version) && [[ $version =~ ([0-9]+)\.([0-9]+) ]] &&
    ((BASH_REMATCH[1] > 3 || (BASH_REMATCH[1] == 3 && BASH_REMATCH[2] >= 25)))
}
header() { # any of these, in the usual folders, in those CMake is told of, or where else the compiler looks
  local cxx folders folder name
  read -ra cxx <<<"${CXX:-c++}"
  IFS=: read -ra folders <<<"/usr:/usr/local:${CMAKE_PREFIX_PATH-}"
  for name; do
    for folder in "${folders[@]}"; do
      [[ ! -e $folder/include/$name ]] || return 0
    done
    "${cxx[@]}" -E -x c++ - <<<$'#if !__has_include(<'"$name"$'>)\n#error\n#endif' && return 0
  done
  return 1
}
python_headers() { "$1" -c 'import sysconfig; open(sysconfig.get_path("include") + "/Python.h")'; }
libfuzzer() { compgen -G "$(clang++ -print-runtime-dir)/libclang_rt.fuzzer*"; }

# Sets missing, must_have (the missing ones without which nothing can be built), reasons, and optional_there: what
# is there of all that CMake may use or leave out, which tells when to configure again.
probe_packages() {
  local groups=" $1 " name kind group probe why
  missing=() must_have=() optional_there=
  declare -gA reasons=() kinds=()
  while IFS='|' read -r name kind group probe why; do
    read -r name kind group <<<"$name $kind $group"
    [[ -n $name && $name != '#'* && "$groups build docs " == *" $group "* ]] || continue
    if eval "$probe" &>/dev/null </dev/null; then
      [[ $kind == must || "build docs" != *"$group"* ]] || optional_there+=" $name"
    elif [[ $groups == *" $group "* ]]; then
      missing+=("$name") reasons[$name]=${why# } kinds[$name]=$kind
      [[ $kind != must ]] || must_have+=("$name")
    fi
  done <"$root/common/setup/packages.txt"
}

# need_packages GROUPS INSTALL: installs what is missing, or only says so when INSTALL is empty.
need_packages() {
  local name new='' command as_root=()
  probe_packages "$1"
  ((${#missing[@]})) || return 0
  for name in "${missing[@]}"; do
    [[ ${kinds[$name]} != must ]] && grep -qxs "$name" "$state/tried" || new=yes
  done
  [[ -n $new || -z $2 ]] || return 0 # Known from an earlier call, and said then.

  say "Missing packages:"
  for name in "${missing[@]}"; do
    printf '  %-19s %s\n' "$name" "${reasons[$name]}" >&2
  done
  command="apt-get install --no-install-recommends ${missing[*]}"
  ((EUID == 0)) || command="sudo $command"
  [[ -n $2 ]] || fail "install them with '$command', or call ./ladder without --no-install."

  lock_setup
  if may_install; then
    install_packages
    probe_packages "$1"
    ((${#missing[@]})) || return 0
  fi
  ((${#must_have[@]} == 0)) ||
    fail "cannot go on without ${must_have[*]}: have them installed with '$command', then call ./ladder again."
  say "Going on without them: CMake fetches what it can, and what needs the rest is left out."
  printf '%s\n' "${missing[@]}" >>"$state/tried"
}

may_install() {
  if ! command -v apt-get >/dev/null; then
    say "They are not installed for you: this system has no apt-get."
  elif ((EUID == 0)); then
    return 0
  elif ! command -v sudo >/dev/null; then
    say "They are not installed for you: you are not root, and there is no sudo."
  elif sudo -n true 2>/dev/null; then
    as_root=(sudo)
    return 0
  elif [[ ! -t 0 ]]; then
    say "They are not installed for you: sudo would ask for a password, and there is no terminal."
  else
    say "Installing them with apt-get, for which sudo may ask for your password."
    sudo -v && as_root=(sudo) && return 0
    say "They are not installed for you: sudo did not allow it."
  fi
  return 1
}

install_packages() {
  local name known=()
  # No questions, no restart of services, and no long wait for a network that is not there.
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 apt-get -q -y
    -o DPkg::Lock::Timeout=120 -o Acquire::Retries=1 -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20
    -o APT::Update::Error-Mode=any)
  if ! quietly apt-update "Asking apt-get what there is ..." "${apt[@]}" update; then
    # With no server in reach, apt-get would wait for each of the packages in turn.
    grep -qaE '^(Hit|Get):' "$state/apt-update.log" ||
      { say "apt-get reaches none of its servers (build/setup/apt-update.log): is there a network?"; return; }
    say "apt-get could not refresh all of its lists (build/setup/apt-update.log): going on with those it has."
  fi
  for name in "${missing[@]}"; do
    apt-cache show "$name" &>/dev/null && known+=("$name")
  done
  ((${#known[@]})) || { say "apt-get knows none of these packages."; return; }
  if ! quietly apt-install "Installing ${#known[@]} packages with apt-get (the first time a minute or two) ..." \
    "${apt[@]}" install --no-install-recommends "${known[@]}"; then
    grep -a '^E:' "$state/apt-install.log" | head -n 5 >&2
    say "apt-get could not install them (all it said: build/setup/apt-install.log)."
  fi
}

# --- Python ---------------------------------------------------------------------------------------------------

# Exports FLASHLADDER_PYTHON when that takes no work: the caller's own choice, the environment, or an earlier fallback.
python_ready() {
  local hash path
  [[ -z ${FLASHLADDER_PYTHON-} ]] || { export FLASHLADDER_PYTHON; return 0; }
  # The stamp is written last, so that a half-made environment has none; it names the interpreter, because a system
  # upgrade puts another one in its place.
  python_stamp="$(sha256sum <"$requirements") $(readlink -f "$venv/bin/python")"
  if [[ -x $venv/bin/python && -f $venv/stamp && $(<"$venv/stamp") == "$python_stamp" ]]; then
    export FLASHLADDER_PYTHON=$venv/bin/python
    return 0
  fi
  [[ -f $state/python ]] && read -r hash path <"$state/python" && [[ $hash == "${python_stamp%% *}" ]] || return 1
  if [[ $path == none ]]; then # Said at that call; tried again after an hour.
    [[ -n $(find "$state/python" -mmin -60) ]]
  else
    [[ -x $path ]] && export FLASHLADDER_PYTHON=$path
  fi
}

need_python() {
  local candidate
  python_ready && return
  if quietly python "Making the Python environment .venv with pinned NumPy and Matplotlib (once, under a minute) ..." \
    make_environment; then
    rm -f "$state/python"
    python_ready && return
  fi
  rm -rf "$venv"
  while read -r candidate; do
    if "$candidate" -c 'import matplotlib, numpy, pygments' &>/dev/null </dev/null; then
      say "The pinned Python environment could not be made (build/setup/python.log): using $candidate, which has" \
        "NumPy, Matplotlib and Pygments; ./ladder setup tries again."
      export FLASHLADDER_PYTHON=$candidate
      break
    fi
  done < <(type -aP python3 python)
  printf '%s %s\n' "${python_stamp%% *}" "${FLASHLADDER_PYTHON:-none}" >"$state/python"
  [[ -n ${FLASHLADDER_PYTHON-} ]] ||
    say "The Python environment could not be made (build/setup/python.log), so charts and the report will not be" \
      "drawn: once there is a network, ./ladder setup makes it."
}

# Where pip looks is the user's to choose (PIP_INDEX_URL and the like); where it installs to and how long it waits for
# a network that is not there, is not. No wheel means no attempt at compiling NumPy for an hour.
pip_install() {
  env -u PIP_TARGET -u PIP_PREFIX -u PIP_ROOT -u PIP_USER -u PYTHONPATH "$venv/bin/python" -m pip install \
    --no-input --disable-pip-version-check "$@"
}
install_wheels() { pip_install --retries 0 --timeout 10 --only-binary :all: "$@"; }
make_environment() {
  rm -rf "$venv" && python3 -m venv "$venv" || return
  install_wheels -r "$requirements" && "$venv/bin/python" -c 'import matplotlib, numpy, pygments' || return
  printf '%s' "$(sha256sum <"$requirements") $(readlink -f "$venv/bin/python")" >"$venv/stamp"
}

# What the guide and the notebooks take on top of it: Sphinx and Jupyter. need_course may: what cannot be had is said,
# and the tests that need it are left out; otherwise the verb cannot run.
need_course() {
  local stamp complain=fail
  [[ ${1-} != may ]] || complain=say
  if [[ ${FLASHLADDER_PYTHON-} != "$venv/bin/python" ]]; then
    "${FLASHLADDER_PYTHON:-false}" -c 'import breathe, furo, ipykernel, myst_parser, nbclient' &>/dev/null ||
      $complain "the guide and the notebooks need .venv, which is not there: ./ladder setup says what is in its way."
    return 0
  fi
  stamp=$(sha256sum <"$course_requirements")
  [[ ! -f $venv/course || $(<"$venv/course") != "$stamp" ]] || return 0
  if quietly course "Installing Sphinx and Jupyter into .venv (once, about a minute) ..." \
    install_wheels -r "$course_requirements"; then
    printf '%s' "$stamp" >"$venv/course"
  else
    $complain "Sphinx and Jupyter could not be installed (build/setup/course.log): once there is a network, call it again."
  fi
}

# The module flashladder in .venv, made of the sources as they are. need_module may: as need_course.
need_module() {
  local stamp cuda=OFF complain=fail launcher
  [[ ${1-} != may ]] || complain=say
  if [[ ${FLASHLADDER_PYTHON-} != "$venv/bin/python" ]]; then
    "${FLASHLADDER_PYTHON:-false}" -c 'import flashladder' &>/dev/null ||
      $complain "the notebooks need the Python module flashladder: make it with" \
        "'$(printf '%q -m pip install %q' "${FLASHLADDER_PYTHON:-python3}" "$root")', then call this again."
    return 0
  fi
  [[ -f $venv/course ]] || return 0 # What builds it could not be had, which was said.
  nvidia-smi -L &>/dev/null && cuda=ON
  stamp="$cuda $(find "$root"/{CMakeLists.txt,pyproject.toml,common,stages} -type f \( -name '*.[ch]pp' -o -name '*.cu' \
    -o -name '*.cmake' -o -name CMakeLists.txt -o -name pyproject.toml -o -path '*/python/*.py' \) \
    -exec sha256sum {} + 2>/dev/null | sha256sum)"
  [[ ! -f $venv/module || $(<"$venv/module") != "$stamp" ]] || return 0
  find_launcher
  if ! python_headers "$venv/bin/python" &>/dev/null; then
    $complain "the Python module flashladder cannot be compiled without Python's headers: install python3-dev, then" \
      "call this again."
  elif CXX=${CXX:-c++} CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(jobs)} quietly module \
    "Compiling the Python module flashladder into .venv (the first time some minutes) ..." \
    pip_install -v --no-deps --no-index --no-build-isolation --force-reinstall \
    -C build-dir=build/python -C cmake.define.FLASHLADDER_CUDA=$cuda \
    -C cmake.define.CMAKE_CXX_COMPILER_LAUNCHER="$launcher" "$root"; then
    printf '%s' "$stamp" >"$venv/module"
  else
    show_log module
    $complain "the Python module flashladder could not be made: the first error above says why (all of it:" \
      "build/setup/module.log)."
  fi
}

# --- The build ------------------------------------------------------------------------------------------------

cached() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"; }

# The program and the Python module are builds of their own, with the same sources, compiler and flags: what one has
# compiled the other takes from ccache. Sets launcher to it, where it is there and can write.
find_launcher() {
  local -a compiler
  read -ra compiler <<<"${CXX:-c++}"
  launcher=${CMAKE_CXX_COMPILER_LAUNCHER-}
  [[ -z $launcher ]] && echo 'int probe;' >"$state/probe.cpp" || return 0
  ! ccache "${compiler[@]}" -c "$state/probe.cpp" -o "$state/probe.o" &>/dev/null || launcher=ccache
}
# Whether the build was configured with a launcher that is gone.
launcher_is_gone() {
  local launcher
  launcher=$(cached CMAKE_CXX_COMPILER_LAUNCHER)
  [[ -n $launcher ]] && ! command -v "$launcher" >/dev/null
}

# One job a core, and 1.5 GiB of memory a job, as far as this machine or its container has them.
jobs() {
  local cores kilobytes limit memory_jobs
  cores=$(nproc 2>/dev/null || echo 2)
  kilobytes=$(sed -n 's/^MemAvailable: *\([0-9]*\) kB/\1/p' /proc/meminfo 2>/dev/null)
  limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null)
  [[ ! $limit =~ ^[0-9]+$ ]] || ((limit / 1024 >= ${kilobytes:-0})) || kilobytes=$((limit / 1024))
  memory_jobs=$((${kilobytes:-4000000} / 1572864))
  ((memory_jobs < cores)) && cores=$memory_jobs
  echo $((cores > 0 ? cores : 1))
}

# What the build was configured without; the docs only where a verb is about them.
say_left_out() {
  grep -ao 'Left out: .*' "$state/configure.log" 2>/dev/null |
    if [[ $needs == *docs* ]]; then cat; else grep -v ': the docs'; fi >&2
}

# need_build TARGET: configures when that is needed, and builds. ninja itself sees to changed CMakeLists.
need_build() {
  local launcher
  if [[ -f $build/CMakeCache.txt ]] &&
    ! [[ $(cached CMAKE_HOME_DIRECTORY) -ef $root && $(cached CMAKE_CACHEFILE_DIR) -ef $build ]]; then
    say "build/release was made for another folder ($(cached CMAKE_HOME_DIRECTORY)): making it afresh."
    rm -rf "$build"
  fi
  if ! grep -qs "^build $1:" "$build/build.ninja" ||
    [[ ! -f $build/packages || $(<"$build/packages") != "$optional_there" ]] ||
    [[ $(cached FLASHLADDER_TURN) != "${FLASHLADDER_TURN-}" ]] || launcher_is_gone; then
    find_launcher
    quietly configure "Configuring ..." cmake -S "$root" --preset release -DFLASHLADDER_TURN="${FLASHLADDER_TURN-}" \
      -DCMAKE_CXX_COMPILER_LAUNCHER="$launcher" ||
      { show_log configure; fail "the build could not be configured: mend what CMake says above."; }
    say_left_out
    printf '%s' "$optional_there" >"$build/packages"
  fi
  grep -q "^build $1:" "$build/build.ninja" ||
    fail "what this verb runs was left out of the build: install what the lines above name, then call it again."
  local most=${CMAKE_BUILD_PARALLEL_LEVEL:-$(jobs)}
  quietly build "Building, $most at a time (all of it the first time, which takes minutes) ..." \
    cmake --build "$build" --target "$1" --parallel "$most" ||
    { show_log build; fail "the build failed: the first error above says where (all of it: build/setup/build.log)."; }
}
