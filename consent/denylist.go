package consent

// A family is a group of variables that are refused for one reason. Names are upper
// case; an exception wins over a prefix of its own family.
type family struct {
	reason     string
	exact      []string
	prefixes   []string
	exceptions []string
}

// families is the denylist. It is the same for every platform.
func families() []family {
	return []family{
		{ // Dynamic loader (ELF).
			reason: "preloads or audits code in every process",
			prefixes: []string{
				"LD_", "LDR_", "_RLD",
			},
		},
		{ // Dynamic loader (Mach-O).
			reason: "preloads or audits code in every process on macOS",
			prefixes: []string{
				"DYLD_", "__XPC_DYLD_",
			},
		},
		{ // Libc.
			reason: "modules, tables and files loaded or written by glibc, musl, jemalloc",
			exact: []string{
				"GLIBC_TUNABLES", "GCONV_PATH", "GETCONF_DIR", "HOSTALIASES", "LOCALDOMAIN", "LOCPATH", "NLSPATH",
				"NIS_PATH", "RES_OPTIONS", "RESOLV_HOST_CONF", "TZDIR", "MALLOC_TRACE", "MALLOC_CHECK_", "MALLOC_CONF",
				"_RJEM_MALLOC_CONF", "PCPROFILE_OUTPUT", "SEGFAULT_OUTPUT_NAME", "LIBPATH", "SHLIB_PATH",
			},
			prefixes: []string{
				"MEMUSAGE_", "SOTRUSS_", "ASAN_", "LSAN_", "MSAN_", "TSAN_", "UBSAN_",
			},
		},
		{ // Executable search and home.
			reason: "chooses which program or dotfile is used",
			exact: []string{
				"PATH", "PATHEXT", "HOME", "USERPROFILE", "HOMEDRIVE", "HOMEPATH", "APPDATA", "LOCALAPPDATA",
				"PROGRAMDATA", "ALLUSERSPROFILE", "SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "SHELL",
				"NODEFAULTCURRENTDIRECTORYINEXEPATH", "__COMPAT_LAYER", "DEVELOPER_DIR", "SDKROOT", "TOOLCHAINS",
				"PSMODULEPATH", "PSMODULEANALYSISCACHEPATH", "CDPATH",
			},
			prefixes: []string{
				"XDG_", "PROGRAMFILES", "COMMONPROGRAMFILES",
			},
		},
		{ // Shells.
			reason: "startup code, functions, option injection",
			exact: []string{
				"BASH_ENV", "ENV", "IFS", "SHELLOPTS", "BASHOPTS", "BASH_LOADABLES_PATH", "BASH_XTRACEFD",
				"PROMPT_COMMAND", "PS0", "PS1", "PS2", "PS3", "PS4", "ZDOTDIR", "FPATH", "FCEDIT", "INPUTRC", "HISTFILE",
				"KSH_VERSION",
			},
			prefixes: []string{
				"BASH_FUNC_", "FISH_", "__FISH_", "ZSH_",
			},
		},
		{ // Node.js and its package managers.
			reason: "--require, module path, registry, script shell",
			exact: []string{
				"NODE_OPTIONS", "NODE_PATH", "NODE_REPL_EXTERNAL_MODULE", "NODE_V8_COVERAGE", "NODE_COMPILE_CACHE",
				"NODE_ICU_DATA", "NODE_REDIRECT_WARNINGS", "NODE_PRESERVE_SYMLINKS", "NODE_PRESERVE_SYMLINKS_MAIN",
				"NODE_CHANNEL_FD", "NODE_EXTRA_CA_CERTS", "NODE_TLS_REJECT_UNAUTHORIZED", "NODE_USE_SYSTEM_CA",
				"ELECTRON_RUN_AS_NODE", "NPM_EXECPATH", "NPM_NODE_EXECPATH", "NPM_COMMAND",
			},
			prefixes: []string{
				"NPM_CONFIG_", "NPM_PACKAGE_", "NPM_LIFECYCLE_", "YARN_", "PNPM_", "COREPACK_", "BUN_", "DENO_",
				"VOLTA_", "NVM_", "FNM_", "ASDF_", "MISE_", "TS_NODE_", "TSX_", "JITI_", "NODENV_",
			},
			exceptions: []string{
				"DENO_DEPLOY_TOKEN", "YARN_NPM_AUTH_TOKEN",
			},
		},
		{ // Python and its package managers.
			reason: "startup, module path, warning-category import, index",
			exact: []string{
				"VIRTUAL_ENV", "__PYVENV_LAUNCHER__", "IPYTHONDIR", "JUPYTER_PATH", "JUPYTER_CONFIG_DIR",
				"JUPYTER_CONFIG_PATH", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR",
			},
			prefixes: []string{
				"PYTHON", "PIP_", "PIPX_", "PIPENV_", "UV_", "POETRY_", "PDM_", "HATCH_", "CONDA_", "MAMBA_", "PYENV_",
				"SETUPTOOLS_",
			},
			exceptions: []string{
				"PYTHONUNBUFFERED", "PYTHONIOENCODING", "PYTHONUTF8", "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED",
				"PYTHONFAULTHANDLER", "PYTHONNOUSERSITE", "PYTHONSAFEPATH", "PYTHONCOERCECLOCALE",
			},
		},
		{ // Ruby.
			reason: "-r, load path, gem source",
			exact: []string{
				"RUBYOPT", "RUBYLIB", "RUBYSHELL", "RUBYPATH", "RAKEOPT",
			},
			prefixes: []string{
				"GEM_", "BUNDLE_", "BUNDLER_", "RBENV_", "RVM_",
			},
			exceptions: []string{
				"GEM_HOST_API_KEY",
			},
		},
		{ // Perl.
			reason: "-M, module path, debugger hook",
			exact: []string{
				"PERLLIB", "PERLIO", "PERLIO_DEBUG", "PERL_UNICODE", "PERL_LOCAL_LIB_ROOT",
			},
			prefixes: []string{
				"PERL5", "PERL_MM_", "PERL_MB_", "PERL_CPANM",
			},
		},
		{ // PHP, Lua, Tcl, R, Julia, BEAM, OCaml, Haskell.
			reason: "startup file or module path",
			exact: []string{
				"PHPRC", "PHP_INI_SCAN_DIR", "TCLLIBPATH", "TCL_LIBRARY", "TK_LIBRARY", "R_HOME", "R_PROFILE",
				"R_PROFILE_USER", "R_ENVIRON", "R_ENVIRON_USER", "R_LIBS", "R_LIBS_USER", "R_LIBS_SITE", "OCAMLRUNPARAM",
				"CAMLRUNPARAM", "CAML_LD_LIBRARY_PATH", "MIX_EXS", "MIX_HOME", "MIX_ARCHIVES", "MIX_PATH", "MIX_REBAR3",
				"MIX_DEPS_PATH", "MIX_BUILD_PATH", "HEX_HOME", "HEX_MIRROR", "HEX_MIRROR_URL", "HEX_CONFIG",
				"HEX_UNSAFE_HTTPS", "GHCRTS", "GHC_PACKAGE_PATH", "GHC_ENVIRONMENT", "STACK_ROOT", "STACK_YAML",
				"STACK_CONFIG",
			},
			prefixes: []string{
				"COMPOSER_", "LUA_", "JULIA_", "ERL_", "ELIXIR_", "CABAL_",
			},
		},
		{ // JVM.
			reason: "agent and option injection",
			exact: []string{
				"CLASSPATH", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "JAVA_OPTS", "JAVA_HOME",
				"JAVA_OPTIONS", "SBT_OPTS", "M2_HOME", "JBOSS_HOME", "CATALINA_OPTS",
			},
			prefixes: []string{
				"MAVEN_", "GRADLE_", "KOTLIN_",
			},
		},
		{ // .NET and CLR.
			reason: "profiler and startup hooks",
			exact: []string{
				"COR_ENABLE_PROFILING",
			},
			prefixes: []string{
				"DOTNET_", "CORECLR_", "COR_PROFILER", "COMPLUS_", "NUGET_", "MSBUILD",
			},
			exceptions: []string{
				"NUGET_API_KEY",
			},
		},
		{ // Go and Rust tool chains.
			reason: "toolexec, wrapper, proxy, cache program",
			exact: []string{
				"GOFLAGS", "GOENV", "GOROOT", "GOPATH", "GOBIN", "GOPROXY", "GONOPROXY", "GOPRIVATE", "GOSUMDB",
				"GONOSUMDB", "GONOSUMCHECK", "GOINSECURE", "GOTOOLCHAIN", "GODEBUG", "GOCACHE", "GOCACHEPROG", "GOAUTH",
				"GOVCS", "GOEXPERIMENT", "RUSTC", "RUSTDOC", "RUSTFLAGS", "RUSTDOCFLAGS", "RUSTC_WRAPPER",
				"RUSTC_WORKSPACE_WRAPPER",
			},
			prefixes: []string{
				"CGO_", "CARGO_", "RUSTUP_",
			},
			exceptions: []string{
				"CARGO_REGISTRY_TOKEN",
			},
		},
		{ // Native builds (node-gyp, wheels).
			reason: "compiler and plug-in redirection during install",
			exact: []string{
				"CC", "CXX", "CPP", "LD", "AR", "NM", "RANLIB", "STRIP", "AS", "CFLAGS", "CXXFLAGS", "CPPFLAGS",
				"LDFLAGS", "LIBRARY_PATH", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "MAKEFLAGS", "MFLAGS",
				"GNUMAKEFLAGS", "MAKEFILES", "CONFIG_SITE", "ACLOCAL_PATH", "M4PATH", "COMPILER_PATH",
			},
			prefixes: []string{
				"CMAKE_", "PKG_CONFIG", "MESON_", "NINJA_", "GCC_",
			},
		},
		{ // Git and version control.
			reason: "helper programs, config injection, transport",
			exact: []string{
				"GIT_SSH", "GIT_SSH_COMMAND", "GIT_SSH_VARIANT", "GIT_ASKPASS", "GIT_EXEC_PATH", "GIT_TEMPLATE_DIR",
				"GIT_EDITOR", "GIT_SEQUENCE_EDITOR", "GIT_PAGER", "GIT_EXTERNAL_DIFF", "GIT_DIFF_OPTS",
				"GIT_PROXY_COMMAND", "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY",
				"GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_COMMON_DIR", "GIT_NAMESPACE", "GIT_ALLOW_PROTOCOL",
				"GIT_PROTOCOL_FROM_USER", "GIT_ATTR_SOURCE", "GIT_ATTR_NOSYSTEM", "GIT_DISCOVERY_ACROSS_FILESYSTEM",
				"GIT_REPLACE_REF_BASE", "HGRCPATH", "HGEDITOR", "HGMERGE", "SVN_SSH", "SVN_EDITOR", "CVS_RSH",
				"RSYNC_RSH",
			},
			prefixes: []string{
				"GIT_CONFIG", "GIT_SSL_", "GIT_TRACE", "GIT_HTTP_", "GIT_PROXY_", "GIT_CURL_",
			},
		},
		{ // Ssh, gpg, sudo.
			reason: "askpass programs, agents, providers",
			exact: []string{
				"SSH_ASKPASS", "SSH_ASKPASS_REQUIRE", "SSH_AUTH_SOCK", "SSH_AGENT_PID", "SSH_SK_PROVIDER",
				"SSH_SK_HELPER", "SSH_PKCS11_HELPER", "SUDO_ASKPASS", "SUDO_EDITOR", "GNUPGHOME", "GPG_AGENT_INFO",
				"PINENTRY_USER_DATA",
			},
		},
		{ // TLS, crypto, Kerberos.
			reason: "trust anchors, engines, key logging",
			exact: []string{
				"OPENSSL_CONF", "OPENSSL_CONF_INCLUDE", "OPENSSL_MODULES", "OPENSSL_ENGINES", "SSL_CERT_FILE",
				"SSL_CERT_DIR", "SSLKEYLOGFILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "CURL_HOME", "CURL_SSL_BACKEND",
				"AWS_CA_BUNDLE", "WGETRC", "NETRC", "KRB5_CONFIG", "KRB5_KTNAME", "KRB5CCNAME", "GSSAPI_MECH_CONF",
				"P11_KIT_CONFIG",
			},
			prefixes: []string{
				"P11_KIT_", "SOFTHSM2_",
			},
		},
		{ // Proxies.
			reason: "sends the child's traffic, and its credentials, elsewhere",
			exact: []string{
				"HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "SOCKS_PROXY", "NO_PROXY", "RSYNC_PROXY",
			},
		},
		{ // Programs named by variables.
			reason: "run by pagers, editors, viewers, pre-processors",
			exact: []string{
				"EDITOR", "VISUAL", "PAGER", "MANPAGER", "BROWSER", "LESSOPEN", "LESSCLOSE", "LESS", "LESSKEY", "MORE",
				"TAR_OPTIONS", "GZIP", "ZIPOPT", "UNZIP", "GREP_OPTIONS", "FZF_DEFAULT_COMMAND", "FZF_DEFAULT_OPTS",
				"RIPGREP_CONFIG_PATH", "VIMINIT", "EXINIT", "MYVIMRC", "EMACSLOADPATH", "PSQL_EDITOR", "PSQLRC",
				"PGSERVICEFILE", "PGSYSCONFDIR", "MYSQL_HOME", "LIBMYSQL_PLUGIN_DIR", "LIBMYSQL_PLUGINS", "ODBCINI",
				"ODBCINSTINI", "ODBCSYSINI", "TNS_ADMIN", "SYSTEMD_PAGER", "SYSTEMD_EDITOR", "MAILCAPS",
				"METAMAIL_PAGER", "TERMINFO", "TERMINFO_DIRS", "TERMCAP", "TF_CLI_CONFIG_FILE", "ANSIBLE_CONFIG",
			},
			prefixes: []string{
				"TF_CLI_ARGS", "ANSIBLE_",
			},
		},
		{ // Desktop, media and device plug-ins.
			reason: "shared objects loaded by path",
			exact: []string{
				"GTK_MODULES", "GTK_PATH", "GTK3_MODULES", "GDK_PIXBUF_MODULE_FILE", "GDK_PIXBUF_MODULEDIR",
				"GIO_EXTRA_MODULES", "GIO_MODULE_DIR", "QT_PLUGIN_PATH", "QT_QPA_PLATFORM_PLUGIN_PATH",
				"QML_IMPORT_PATH", "QML2_IMPORT_PATH", "LIBGL_DRIVERS_PATH", "VK_LAYER_PATH", "VK_ICD_FILENAMES",
				"VK_DRIVER_FILES", "LIBVA_DRIVERS_PATH", "VDPAU_DRIVER_PATH", "ALSA_CONFIG_PATH", "FONTCONFIG_FILE",
				"FONTCONFIG_PATH", "OCL_ICD_VENDORS", "CUDA_INJECTION64_PATH", "MAGICK_CONFIGURE_PATH",
				"MAGICK_CODER_MODULE_PATH", "MAGICK_CODER_FILTER_PATH", "GS_LIB", "GS_OPTIONS",
				"DBUS_SESSION_BUS_ADDRESS", "DBUS_SYSTEM_BUS_ADDRESS", "DBUS_STARTER_ADDRESS",
			},
			prefixes: []string{
				"GST_PLUGIN_", "VK_ADD_",
			},
		},
		{ // This product.
			reason: "its own settings and secret fallbacks",
			prefixes: []string{
				"RELAVIUM_",
			},
		},
	}
}
