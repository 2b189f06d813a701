// Package webhookconfig is the command "agent webhook-configuration": it prints the
// ValidatingWebhookConfiguration that makes the API server of a runtime call the agent.
package webhookconfig

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
)

// ErrUsage means that the arguments are wrong. The error that wraps it names all mistakes.
var ErrUsage = errors.New("wrong arguments, --help lists all")

const usage = `agent webhook-configuration prints the ValidatingWebhookConfiguration for a runtime (SKR), in YAML.

It needs no cluster. The watches come from Watcher resources (-f), or one from --manager and --resource.
Apply the output after the agent is ready:

  agent webhook-configuration --ca-cert ca.crt -f watchers.yaml --canary runtime-watcher/runtime-watcher-canary |
    kubectl apply --server-side -f -

Flags:
`

// Run prints the configuration that args ask for. It returns [flag.ErrHelp] after it has printed
// the help.
func Run(args []string, stdin io.Reader, stdout io.Writer) error {
	s := newSettings(stdout)

	if err := s.flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return fmt.Errorf("%w: %w", ErrUsage, err)
	}

	watches, endpoint, err := s.read(stdin)
	if err != nil {
		return fmt.Errorf("%w:\n%w", ErrUsage, err)
	}

	configuration, err := admission.WebhookConfiguration(s.name, endpoint, watches, s.opts)
	if err != nil {
		return fmt.Errorf("%w:\n%w", ErrUsage, err)
	}

	text, err := yaml.Marshal(configuration)
	if err != nil {
		return fmt.Errorf("write the configuration as YAML: %w", err)
	}

	_, err = stdout.Write(text)

	return err
}

type settings struct {
	flags *flag.FlagSet

	name, caFile, file         string
	url, service               string
	manager, resource          string
	field, labels              string
	canary, excludedNamespaces string
	matchConditions            bool
	opts                       admission.ConfigurationOptions
}

func newSettings(help io.Writer) *settings {
	s := &settings{flags: flag.NewFlagSet("agent webhook-configuration", flag.ContinueOnError)}
	f := s.flags

	f.SetOutput(io.Discard)
	f.Usage = func() {
		f.SetOutput(help)
		_, _ = io.WriteString(help, usage) // A reader that has gone needs no help.

		f.PrintDefaults()
	}

	f.StringVar(&s.file, "f", "", "`file` with Watcher resources in YAML; - is the standard input")
	f.StringVar(&s.manager, "manager", "", "`name` of the manager that gets the events, with --resource")
	f.StringVar(&s.resource, "resource", "",
		"`group/version/resource` to watch, such as apps/v1/deployments or v1/configmaps")
	f.StringVar(&s.field, "field", "spec", "`part` of the object that matters: spec or status")
	f.StringVar(&s.labels, "labels", "", "`key=value,...` that an object must have to be watched")
	f.StringVar(&s.name, "name", "runtime-watcher", "`name` of the configuration")
	f.StringVar(&s.service, "service", "runtime-watcher/runtime-watcher",
		"`namespace/name[:port]` of the agent's Service")
	f.StringVar(&s.url, "url", "", "`URL` of the agent, instead of --service")
	f.StringVar(&s.caFile, "ca-cert", "",
		"`file` with the CA certificates of the agent's serving certificate, PEM (required)")
	f.DurationVar(&s.opts.Timeout, "timeout", 2*time.Second,
		"`duration` that a write waits for the agent at most, 1s to 30s")
	f.StringVar(&s.canary, "canary", "", "`namespace/name` of the canary's Lease (CANARY_LEASE of the agent)")
	f.BoolVar(&s.matchConditions, "match-conditions", true,
		"let the API server (Kubernetes 1.28 or later) skip the writes that change nothing")
	f.StringVar(&s.excludedNamespaces, "exclude-namespaces", "",
		"`names,...` of the namespaces in which nothing is watched (default kube-system and that of the Service)")

	return s
}

// read turns the flags into arguments of [admission.WebhookConfiguration]. Its error names all
// mistakes.
func (s *settings) read(stdin io.Reader) (watches []watch.Watch, endpoint admission.Endpoint, err error) {
	var mistakes []error

	note := func(err error) { mistakes = append(mistakes, err) }

	if s.flags.NArg() > 0 {
		note(fmt.Errorf("%.64q: want flags only", s.flags.Arg(0)))
	}

	watches, err = s.watches(stdin)
	note(err)

	endpoint, err = s.endpoint()
	note(err)

	if s.canary != "" {
		s.opts.Canary, err = namespacedName("canary", s.canary)
		note(err)
	}

	s.opts.NoMatchConditions = !s.matchConditions
	if s.excludedNamespaces != "" {
		s.opts.ExcludedNamespaces = strings.Split(s.excludedNamespaces, ",")
	}

	return watches, endpoint, errors.Join(mistakes...)
}

func (s *settings) watches(stdin io.Reader) ([]watch.Watch, error) {
	switch {
	case s.file != "" && (s.manager != "" || s.resource != ""):
		return nil, errors.New("-f and --manager or --resource: want one of them")
	case s.file == "-":
		return fromFile(stdin)
	case s.file != "":
		return openWatchers(s.file)
	default:
		return s.oneWatch()
	}
}

func openWatchers(path string) ([]watch.Watch, error) {
	file, err := os.Open(path) //nolint:gosec // The user names the file.
	if err != nil {
		return nil, fmt.Errorf("-f: %w", err)
	}
	defer file.Close()
	return fromFile(file)
}

func fromFile(file io.Reader) ([]watch.Watch, error) {
	watches, err := ReadWatchers(file)
	if err != nil {
		return nil, fmt.Errorf("-f: %w", err)
	}
	if len(watches) == 0 {
		return nil, errors.New("-f: want at least one Watcher, have none")
	}
	return watches, nil
}

func (s *settings) endpoint() (admission.Endpoint, error) {
	var mistakes []error
	bundle, err := s.readBundle()
	mistakes = append(mistakes, err)
	e := admission.Endpoint{URL: s.url, CABundle: bundle}
	if s.url == "" {
		mistakes = append(mistakes, s.readService(&e))
	} else if s.isSet("service") {
		mistakes = append(mistakes, errors.New("--url and --service: want one of them"))
	}
	return e, errors.Join(mistakes...)
}

func (s *settings) readBundle() ([]byte, error) {
	if s.caFile == "" {
		return nil, errors.New("--ca-cert: missing, want a file with CA certificates")
	}
	bundle, err := os.ReadFile(s.caFile)
	if err != nil {
		return nil, fmt.Errorf("--ca-cert: want a file with CA certificates: %w", err)
	}
	return bundle, nil
}

func (s *settings) isSet(name string) (set bool) {
	s.flags.Visit(func(f *flag.Flag) { set = set || f.Name == name })
	return set
}

func (s *settings) readService(e *admission.Endpoint) (err error) {
	name, port, hasPort := strings.Cut(s.service, ":")
	if hasPort {
		n, err := strconv.ParseInt(port, 10, 32)
		if err != nil {
			return fmt.Errorf("--service: port %.20q: want a number", port)
		}
		e.ServicePort = int32(n)
	}
	e.Service, err = namespacedName("service", name)
	return err
}

func namespacedName(flagName, text string) (types.NamespacedName, error) {
	namespace, name, ok := strings.Cut(text, "/")
	if !ok || namespace == "" || name == "" {
		return types.NamespacedName{}, fmt.Errorf("--%s: %.80q: want namespace/name", flagName, text)
	}
	return types.NamespacedName{Namespace: namespace, Name: name}, nil
}

// parseLabels reads key=value pairs, separated by commas.
func parseLabels(text string) (map[string]string, error) {
	labels := make(map[string]string)
	for pair := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(pair, "=")
		if text != "" && !ok {
			return nil, fmt.Errorf("--labels: %.80q: want key=value", pair)
		}
		if ok {
			labels[key] = value
		}
	}
	return labels, nil
}

// versionPattern matches the versions of Kubernetes. No API group has such a name.
var versionPattern = regexp.MustCompile(`^v\d+((alpha|beta)\d+)?$`)

// parseResource reads version/resource of the core group, or group/version/resource.
func parseResource(text string) (schema.GroupVersionResource, error) {
	parts := strings.Split(text, "/")
	if len(parts) == 2 { // Version and resource.
		parts = slices.Insert(parts, 0, "")
	}
	if len(parts) != 3 || versionPattern.MatchString(parts[0]) { // Group, version and resource.
		return schema.GroupVersionResource{}, fmt.Errorf("--resource: %.80q: want group/version/resource, or "+
			"version/resource of the core group, without a subresource (--field status watches the status, "+
			"a Watcher of -f any other)", text)
	}
	return schema.GroupVersionResource{Group: parts[0], Version: parts[1], Resource: parts[2]}, nil
}

func checkField(text string) error {
	switch core.Field(text) {
	case core.FieldSpec, core.FieldStatus:
		return nil
	default:
		return fmt.Errorf("--field: %.20q: want spec or status", text)
	}
}
