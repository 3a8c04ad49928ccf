"""Files that programs of the host execute or obey by themselves, by their names. Pure.

Nobody has to call these programs for the file's sake: a shell that enters the directory, an
editor that opens it, an agent that starts in it, a package manager or test runner that is
run for something else. A table of names can't be whole; it has what is widely in use.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """Files of one kind.

    Attributes:
        runner: the program that executes or obeys them, for people.
        names: of files, anywhere; compared without regard to case.
        endings: of names.
        directories: all that is in a directory of this name, or of these names below one
            another, counts.
    """

    runner: str
    names: tuple[str, ...] = ()
    endings: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()


KINDS = (
    Kind(
        "git",
        (".gitattributes", ".gitmodules", ".lfsconfig", ".gitconfig", ".mailmap"),
        directories=(".githooks", ".git-hooks", "githooks", "git-hooks"),
    ),
    Kind(
        "hooks of git, by a hooks manager",
        (
            *(".pre-commit-config.yaml", ".pre-commit-config.yml", ".pre-commit-hooks.yaml"),
            *("lefthook.yml", "lefthook.yaml", ".lefthook.yml", ".lefthook.yaml", "lefthook.toml"),
            *("lefthook-local.yml", ".lefthook-local.yml", "prek.toml", ".overcommit.yml"),
            *(
                ".huskyrc",
                ".huskyrc.json",
                ".huskyrc.js",
                "husky.config.js",
                ".simple-git-hooks.js",
            ),
            *(
                ".lintstagedrc",
                ".lintstagedrc.json",
                "lint-staged.config.js",
                "commitlint.config.js",
            ),
        ),
        directories=(".husky", ".lefthook"),
    ),
    Kind(
        "shells that enter the directory, or tools that choose versions",
        (
            *(".envrc", ".env", ".env.local", ".autoenv", ".autoenv.zsh"),
            *(".tool-versions", ".python-version", ".ruby-version", ".node-version", ".nvmrc"),
            *(".java-version", ".terraform-version", ".go-version", ".sdkmanrc", ".rvmrc"),
            *("mise.toml", ".mise.toml", "mise.local.toml", ".mise.local.toml", ".miserc.toml"),
            *("devbox.json", "devenv.nix", "flake.nix", "shell.nix", "default.nix", ".asdfrc"),
            *(".bashrc", ".bash_profile", ".profile", ".zshrc", ".zshenv", ".inputrc"),
            *("rust-toolchain", "rust-toolchain.toml", "pixi.toml"),
        ),
        directories=(".direnv", ".mise", ".hermit"),
    ),
    Kind(
        "editors",
        (
            *(".exrc", ".vimrc", ".nvimrc", ".nvim.lua", ".lvimrc", ".dir-locals.el"),
            *(".dir-locals-2.el", ".projectile", ".gdbinit", ".lldbinit", ".ycm_extra_conf.py"),
        ),
        (".code-workspace", ".iml", ".sublime-project"),
        (".vscode", ".idea", ".fleet", ".zed", ".vs", ".run", ".theia", ".settings", ".nvim"),
    ),
    Kind(
        "coding agents",
        (
            *(".mcp.json", "mcp.json", "CLAUDE.md", "CLAUDE.local.md", "AGENTS.md", "GEMINI.md"),
            *(".cursorrules", ".windsurfrules", ".clinerules", ".roomodes", ".goosehints"),
            *("opencode.json", "opencode.jsonc", ".aider.conf.yml", ".crush.json", "crush.json"),
        ),
        directories=(
            *(".claude", ".claude-plugin", ".cursor", ".codex", ".gemini", ".windsurf"),
            *(".continue", ".roo", ".kilocode", ".opencode", ".clinerules", ".amazonq", ".kiro"),
            *(".qwen", ".agents", ".github/agents", ".github/prompts", ".goose"),
        ),
    ),
    Kind(
        "containers of development",
        (
            *("Dockerfile", "Containerfile", "docker-compose.yml", "docker-compose.yaml"),
            *("docker-compose.override.yml", "docker-compose.override.yaml", "compose.yml"),
            *(
                "compose.yaml",
                "compose.override.yml",
                "compose.override.yaml",
                ".devcontainer.json",
            ),
            *("docker-bake.hcl", "docker-bake.json", "Vagrantfile", ".gitpod.yml", "Tiltfile"),
            *("skaffold.yaml", "devfile.yaml", "Procfile", "docker-bake.override.hcl"),
        ),
        (".dockerfile",),
        (".devcontainer",),
    ),
    Kind(
        "builds",
        (
            *("Makefile", "GNUmakefile", "makefile.am", "CMakeLists.txt", "CMakePresets.json"),
            *("CMakeUserPresets.json", "meson.build", "configure", "configure.ac", "autogen.sh"),
            *("SConstruct", "SConscript", "wscript", "BUILD", "BUILD.bazel", "WORKSPACE"),
            *("WORKSPACE.bazel", "MODULE.bazel", ".bazelrc", ".bazeliskrc", "Rakefile"),
            *("justfile", ".justfile", "Taskfile.yml", "Taskfile.yaml", "Taskfile.dist.yml"),
            *("Earthfile", "dune", "build.zig", "Package.swift", "build.sbt", "build.xml"),
        ),
        (".mk", ".cmake", ".just", ".csproj", ".vbproj", ".fsproj", ".props", ".targets", ".nix"),
    ),
    Kind(
        "package managers and runtimes of JavaScript",
        (
            *("package.json", ".npmrc", ".yarnrc", ".yarnrc.yml", ".yarnrc.yaml", ".pnpmfile.cjs"),
            *("pnpm-workspace.yaml", ".pnpmfile.js", ".pnp.cjs", ".pnp.loader.mjs", "bunfig.toml"),
            *("deno.json", "deno.jsonc", "nx.json", "turbo.json", "lerna.json", "Gruntfile.js"),
            *("gulpfile.js", "gulpfile.mjs", "binding.gyp", ".swcrc", ".babelrc", ".babelrc.js"),
            *(".eslintrc", ".eslintrc.js", ".eslintrc.cjs", ".eslintrc.json", ".prettierrc"),
            *(".prettierrc.js", ".prettierrc.cjs", ".mocharc.js", ".mocharc.json", ".mocharc.yml"),
            *(
                "package-lock.json",
                "yarn.lock",
                "pnpm-lock.yaml",
                "bun.lock",
                "npm-shrinkwrap.json",
            ),
        ),
        tuple(
            f".config{end}" for end in (".js", ".mjs", ".cjs", ".ts", ".mts", ".cts")
        ),  # vite.config.ts, eslint.config.mjs, jest.config.js
        (".yarn",),
    ),
    Kind(
        "Python and its tools",
        (
            *("conftest.py", "pyproject.toml", "setup.py", "setup.cfg", "tox.ini", "noxfile.py"),
            *("sitecustomize.py", "usercustomize.py", "pytest.ini", ".pytest.ini", "tox.toml"),
            *("pip.conf", "Pipfile", "Pipfile.lock", "uv.toml", "uv.lock", "poetry.lock"),
            *("poetry.toml", "dodo.py", "fabfile.py", "tasks.py", "mypy.ini"),
            *(".mypy.ini", ".pylintrc", "pylintrc", ".coveragerc", "hatch.toml", "hatch_build.py"),
            *("environment.yml", "pyvenv.cfg", "ipython_config.py", "constraints.txt", ".pdbrc"),
            *("requirements.txt", "requirements-dev.txt"),
        ),
        (".pth",),
    ),
    Kind(
        "Cargo",
        ("build.rs", "Cargo.toml", "Cargo.lock", "clippy.toml"),
        directories=(".cargo",),
    ),
    Kind("Go", ("go.mod", "go.work", "magefile.go", ".golangci.yml", ".golangci.yaml")),
    Kind(
        "Gradle and Maven",
        (
            *("gradlew", "gradlew.bat", "build.gradle", "build.gradle.kts", "settings.gradle"),
            *("settings.gradle.kts", "init.gradle", "gradle.properties", "pom.xml", "mvnw"),
            *("mvnw.cmd", ".jvmopts", "gradle-wrapper.properties", "gradle-wrapper.jar"),
        ),
        directories=(".mvn", "buildsrc", "gradle/wrapper"),
    ),
    Kind(
        "Ruby, PHP, Elixir, Perl",
        (
            *("Gemfile", "Gemfile.lock", ".irbrc", ".pryrc", ".rspec", "config.ru", "Guardfile"),
            *("Brewfile", "Fastfile", "Podfile", "Dangerfile", "composer.json", "composer.lock"),
            *(".user.ini", "mix.exs", ".iex.exs", "Makefile.PL", "Build.PL", "Capfile"),
        ),
        (".gemspec",),
        (".bundle",),
    ),
    Kind(
        "continuous integration",
        (
            *(".gitlab-ci.yml", ".travis.yml", "Jenkinsfile", "azure-pipelines.yml", ".drone.yml"),
            *("bitbucket-pipelines.yml", "appveyor.yml", ".appveyor.yml", ".cirrus.yml"),
            *("cloudbuild.yaml", "buildspec.yml", ".woodpecker.yml", "action.yml", "action.yaml"),
            *("renovate.json", "netlify.toml", "vercel.json", ".goreleaser.yml"),
        ),
        directories=(
            *(".github/workflows", ".github/actions", ".gitea/workflows", ".forgejo/workflows"),
            *(".circleci", ".buildkite", ".gitlab", ".woodpecker", ".ci", ".tekton", ".teamcity"),
        ),
    ),
    Kind("file managers and desktops", (".directory", "autorun.inf"), (".desktop",)),
)
"""What is looked for. Each name belongs to one kind."""

BY_CONFIGURATION = "git, by the host's own configuration"
"""The runner of what the host's git was told to execute or obey in the worktree."""

_NAMES = {name.casefold(): kind.runner for kind in KINDS for name in kind.names}
_ENDINGS = tuple((end, kind.runner) for kind in KINDS for end in kind.endings)
_ANY_ENDING = tuple(end for end, _ in _ENDINGS)
_DIRECTORIES = {name: kind.runner for kind in KINDS for name in kind.directories}


def runner_of(name: str, above: str = "") -> str | None:
    """Who executes or obeys a file, or link, of this name; None = nobody we know.

    Args:
        name: its own.
        above: name of the directory that it is in.
    """
    name = name.casefold()
    if runner := _NAMES.get(name):
        return runner
    if name.endswith(_ANY_ENDING):
        return next(runner for end, runner in _ENDINGS if name.endswith(end))
    if "." in name[1:]:  # a link of a directory's name is as good as the directory
        return None
    return runner_below(name, above)


def runner_below(name: str, above: str = "") -> str | None:
    """The same for all that is in a directory of this name."""
    name = name.casefold()
    return _DIRECTORIES.get(name) or _DIRECTORIES.get(f"{above.casefold()}/{name}")
