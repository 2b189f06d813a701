package budget

import (
	"context"
	"crypto/x509"
	"errors"
	"go/ast"
	"net"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	prom "github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apitypes "k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/remote"
	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/adapters/informer"
	"github.com/runtime-watcher/runtime-watcher/adapters/multicluster"
	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus/watchermetrics"
	"github.com/runtime-watcher/runtime-watcher/agent"
	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/controlplane/lifecyclemanager"
	"github.com/runtime-watcher/runtime-watcher/controlplane/runtimes"
	"github.com/runtime-watcher/runtime-watcher/controlplane/watcher"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/intake"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

const module = "github.com/runtime-watcher/runtime-watcher/"

// options is a struct of options, and what returns the error of a value.
type options struct {
	of reflect.Type
	// use returns the error of options. It is nil for a struct without numbers.
	use func(options any) error
}

func optionsOf[O any](use func(O) error) options {
	return options{reflect.TypeFor[O](), func(value any) error {
		typed, _ := value.(O)
		return use(typed)
	}}
}

func withoutNumbers[O any]() options { return options{of: reflect.TypeFor[O]()} }

// allOptions are all exported structs of options.
func allOptions(t *testing.T) []options {
	t.Helper()
	forwarder := core.ForwarderFunc(func(context.Context, core.Manager, core.Batch) error { return nil })
	handlers := map[core.Manager]core.Handler{
		"widgets": core.HandlerFunc(func(context.Context, core.Delivery) error { return nil }),
	}
	objects := fake.NewClientBuilder().Build()
	peers := listener.FromXFCC(listener.InsecureAnyProxy(), x509.NewCertPool, listener.PeerOptions{})
	secret := apitypes.NamespacedName{Namespace: "a", Name: "b"}

	return []options{
		optionsOf(func(o outbox.Options) error {
			_, err := outbox.New(forwarder, o)
			return err
		}),
		optionsOf(func(o fleet.Options) error {
			_, err := fleet.New(o)
			return err
		}),
		optionsOf(func(o intake.Options) error {
			_, err := intake.New(listener.InsecureAllowAll(), handlers, o)
			return err
		}),
		optionsOf(func(o listener.Options) error {
			_, err := listener.New(peers, listener.InsecureAllowAll(), handlers, o)
			return err
		}),
		optionsOf(func(o listener.PeerOptions) error {
			_, err := listener.New(listener.FromXFCC(listener.InsecureAnyProxy(), x509.NewCertPool, o), listener.InsecureAllowAll(), handlers,
				listener.Options{})
			return err
		}),
		optionsOf(func(o keys.FilesOptions) error {
			_, err := keys.NewFiles(keys.Paths{}, o)
			return err
		}),
		optionsOf(func(o admission.Options) error {
			_, err := admission.New(core.AcceptorFunc(func(core.Manager, core.WatchEvent) (none core.Outcome) { return none }), o)
			return err
		}),
		optionsOf(func(o admission.ConfigurationOptions) error {
			_, err := admission.WebhookConfiguration("a", admission.Endpoint{}, nil, o)
			return err
		}),
		optionsOf(func(o httpmtls.Options) error {
			_, err := httpmtls.NewForwarder(noKeys{}, "localhost", contract.V3, o)
			return err
		}),
		optionsOf(func(o httpmtls.FallbackOptions) error {
			_, err := httpmtls.NewFallback(forwarder, nil, o)
			return err
		}),
		optionsOf(func(o natsjetstream.Options) error {
			_, err := natsjetstream.NewConsumer(nil, listener.InsecureAllowAll(), handlers, o)
			return err
		}),
		optionsOf(func(o natsjetstream.ForwarderOptions) error {
			conn := &nats.Conn{Opts: nats.Options{InboxPrefix: natsjetstream.InboxPrefix("runtime-1")}}
			_, err := natsjetstream.NewForwarder(conn, "runtime-1", o)
			return err
		}),
		optionsOf(func(o watchermetrics.Options) error {
			_, err := watchermetrics.NewListener(prom.NewRegistry(), o)
			return err
		}),
		optionsOf(func(o controllerruntime.LeaderEndpointOptions) error {
			_, err := controllerruntime.NewLeaderEndpoint(objects, secret,
				controllerruntime.ReplicaEndpoint{Operator: "o", Address: "192.0.2.1", Ports: map[string]int32{"": 1}}, o)
			return err
		}),
		optionsOf(func(o remote.KubeconfigOptions) error {
			_, err := remote.NewKubeconfigs(objects, "config", client.ObjectKeyFromObject, o)(t.Context(), &corev1.Secret{})
			return err
		}),
		optionsOf(func(o remote.LanesOptions[string]) error {
			lanes := remote.NewLanes(func(r string) string { return r }, reconcile.TypedFunc[string](nil), o)
			return lanes.Regular.Start(t.Context(), nil)
		}),
		optionsOf(func(o agent.Options) error {
			o.Contract = contract.V1 // InFlight may have any number.
			_, err := agent.New(t.Context(), agent.Connection{}, agent.Parts{
				Source: func(context.Context, *agent.Inbox) error { return nil }, Transport: forwarder,
				Listen: func(context.Context, string, string) (net.Listener, error) { return nil, net.ErrClosed },
			}, o)
			return err
		}),
		optionsOf(func(o certificates.Options) error {
			_, err := certificates.New(objects, certificates.Parts{}, o)
			return err
		}),
		optionsOf(func(o installation.Options) error {
			_, err := installation.New(installation.Parts{}, o)
			return err
		}),
		optionsOf(func(o runtimes.Options) error { return runtimes.SetUp(nil, runtimes.Parts{}, o) }),
		optionsOf(func(o lifecyclemanager.Options) error {
			if o.Step == 0 {
				o.Step = 2 // It is required.
			}
			if o.WarmUp == 0 && o.Step == 2 {
				return nil
			}
			_, err := lifecyclemanager.SetUp(nil, "", o)
			return err
		}),
		withoutNumbers[controllerruntime.RuntimesOptions](),
		withoutNumbers[controllerruntime.SourceOptions](),
		withoutNumbers[intake.RevocationOptions](),
		withoutNumbers[informer.Options](),
		withoutNumbers[multicluster.ProviderOptions](),
		withoutNumbers[watcher.Options](),
		withoutNumbers[testpki.Options](),
	}
}

type noKeys struct{}

func (noKeys) Material() (*keys.Material, error) { return nil, errors.New("no key material") }

// suites are options of suites that only tests call.
var suites = []reflect.Type{reflect.TypeFor[coretest.ForwarderOptions](), reflect.TypeFor[coretest.ReceiverOptions]()}

// A zero is the default. A negative number is an error that names its field, unless the description of
// the field says what a negative number means. docs/guide/embedding.md has the rule.
func TestOneRuleForZeroAndNegative(t *testing.T) {
	t.Parallel()
	described := descriptions(t)

	var listed []string
	for _, each := range allOptions(t) {
		listed = append(listed, nameOf(each.of))
		checkNumbers(t, each, described, nil, each.of)
	}
	for _, suite := range suites {
		listed = append(listed, nameOf(suite))
	}

	for name := range described {
		if strings.HasSuffix(name, "Options") && !slices.Contains(listed, name) {
			t.Errorf("%s is in no list of this test: add it", name)
		}
	}
}

func nameOf(of reflect.Type) string {
	name, _, _ := strings.Cut(of.Name(), "[")
	return strings.TrimPrefix(of.PkgPath(), module) + "." + name
}

// checkNumbers checks the numbers of a struct at a place in options, and of the structs of its package
// within.
func checkNumbers(t *testing.T, all options, described map[string]map[string]string, place []int, within reflect.Type) {
	t.Helper()
	for i := range within.NumField() {
		field := within.Field(i)
		at := append(slices.Clone(place), i)
		set := reflect.New(all.of).Elem()
		value := set.FieldByIndex(at)

		switch {
		case !field.IsExported():
			continue
		case field.Type.Kind() == reflect.Struct && field.Type.PkgPath() == all.of.PkgPath():
			checkNumbers(t, all, described, at, field.Type)
			continue
		case field.Type == reflect.TypeFor[time.Duration]():
			value.SetInt(int64(-time.Second))
		case value.CanInt() && field.Type.PkgPath() == "":
			value.SetInt(-1)
		case value.CanFloat():
			value.SetFloat(-1)
		default:
			continue
		}

		name := nameOf(within) + "." + field.Name
		if all.use == nil {
			t.Errorf("%s is a number: want a function that uses %s", name, nameOf(all.of))
			continue
		}
		names := regexp.MustCompile(`(?i)\b` + field.Name + `\b`)
		if err := all.use(reflect.Zero(all.of).Interface()); err != nil && names.MatchString(err.Error()) {
			t.Errorf("%s is zero: %v; want its default", name, err)
		}
		err := all.use(set.Interface())
		refused := err != nil && names.MatchString(err.Error())
		description := described[nameOf(within)][field.Name]
		if documented := strings.Contains(strings.ToLower(description), "negative"); documented == refused {
			t.Errorf("%s is negative: %v; its description says what that means: %t", name, err, documented)
		}
	}
}

// descriptions are the comments of the fields of all exported structs that users can import.
func descriptions(t *testing.T) map[string]map[string]string {
	t.Helper()
	all := make(map[string]map[string]string)
	forImportable(t, func(folder string, file *ast.File) {
		ast.Inspect(file, func(node ast.Node) bool {
			spec, isType := node.(*ast.TypeSpec)
			if !isType || !spec.Name.IsExported() {
				return true
			}
			if structure, isStruct := spec.Type.(*ast.StructType); isStruct {
				all[folder+"."+spec.Name.Name] = commentsOf(structure)
			}
			return false
		})
	})
	return all
}

func commentsOf(structure *ast.StructType) map[string]string {
	comments := make(map[string]string)
	for _, field := range structure.Fields.List {
		for _, name := range field.Names {
			comments[name.Name] = field.Doc.Text()
		}
	}
	return comments
}
