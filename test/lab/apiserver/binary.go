package apiserver

import (
	"embed"
	"fmt"
	"runtime"
	"strings"
)

//go:embed build/*.mod build/*.sum
var buildFiles embed.FS

// binary is one program of a control plane and its sources.
type binary struct {
	name    string
	files   string // base name of its .mod and .sum in build/
	module  string // its required version is the version of the program
	pkg     string // main package
	ldflags func(version string) string
}

func etcdBinary() binary {
	return binary{
		name:    "etcd",
		files:   "etcd",
		module:  "go.etcd.io/etcd/server/v3",
		pkg:     "go.etcd.io/etcd/server/v3",
		ldflags: func(string) string { return "-s -w" },
	}
}

func kubernetesBinary(name string) binary {
	return binary{
		name:    name,
		files:   "kubernetes",
		module:  "k8s.io/kubernetes",
		pkg:     "k8s.io/kubernetes/cmd/" + name,
		ldflags: kubernetesLDFlags,
	}
}

// kubernetesLDFlags sets the version of the program: without it the API server reports v0.0.0, and
// clients that depend on the version decide wrongly.
func kubernetesLDFlags(version string) string {
	const at = "k8s.io/component-base/version."
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	return strings.Join([]string{
		"-s", "-w",
		"-X", at + "gitVersion=" + version,
		"-X", at + "gitMajor=" + parts[0],
		"-X", at + "gitMinor=" + parts[1],
		"-X", at + "gitTreeState=clean",
	}, " ")
}

// binaries returns the programs of a control plane, the quick build first.
func binaries(kubectl bool) []binary {
	list := []binary{etcdBinary(), kubernetesBinary("kube-apiserver")}
	if kubectl {
		list = append(list, kubernetesBinary("kubectl"))
	}
	return list
}

// version is the version that build/<files>.mod requires.
func (b binary) version() (string, error) {
	mod, err := buildFiles.ReadFile("build/" + b.files + ".mod")
	if err != nil {
		return "", fmt.Errorf("read the module file of %s: %w", b.name, err)
	}
	return requiredVersion(string(mod), b.module)
}

func requiredVersion(mod, module string) (string, error) {
	for line := range strings.Lines(mod) {
		fields := strings.Fields(line)
		if len(fields) >= 3 && fields[0] == "require" && fields[1] == module {
			if strings.Count(fields[2], ".") < 2 {
				return "", fmt.Errorf("version of %s is %q, expected vMAJOR.MINOR.PATCH", module, fields[2])
			}
			return fields[2], nil
		}
	}
	return "", fmt.Errorf("no line %q in the module file", "require "+module+" VERSION")
}

// versionDir names the directory of the binaries. The platform is part of it, because a repository
// may be mounted into a container.
func versionDir() (string, error) {
	kubernetes, err := kubernetesBinary("kube-apiserver").version()
	if err != nil {
		return "", err
	}
	etcd, err := etcdBinary().version()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("kubernetes-%s_etcd-%s_%s-%s", kubernetes, etcd, runtime.GOOS, runtime.GOARCH), nil
}
