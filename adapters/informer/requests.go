package informer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

const (
	acceptObjects = "application/json"
	// acceptMetadata is from the Kubernetes API concepts. A list names the kind of its items.
	acceptMetadata     = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	acceptMetadataList = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
)

// requests makes a [state] of each object as it is read, so that no list is in memory.
type requests struct {
	*follower

	resource *resource
	parts    parts
	// gone ends the reflector when the resource is not served.
	gone context.CancelFunc
}

func (q *requests) listWatch() *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			page, err := q.listPage(ctx, opts)
			q.reportFailure(ctx, err)
			return page, err
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			events, err := q.openWatch(ctx, opts)
			switch {
			case opts.SendInitialEvents != nil && !isRetried(err): // If it fails, a list follows.
			case err == nil:
				q.noteSuccess()
			default:
				q.reportFailure(ctx, err)
			}
			return events, err
		},
	}
}

// reportFailure reports err unless it is nil, ctx has ended or the version has expired. After an
// expired version, the objects are listed again.
func (q *requests) reportFailure(ctx context.Context, err error) {
	isExpired := apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
	if err == nil || ctx.Err() != nil || isExpired {
		return
	}

	q.noteFailure(err)
	if apierrors.IsNotFound(err) {
		q.gone()
	}
}

// listPage returns one page of a list. It ends a request that makes no progress.
func (q *requests) listPage(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
	limit := newLimit(ctx)
	defer limit.endRequest()

	body, err := q.openStream(limit.ctx, opts, acceptMetadataList)
	if err != nil {
		return nil, limit.causeOf(err)
	}
	defer body.Close()

	page, err := readList(limit.newReader(body), q.parts)
	if err != nil {
		return nil, limit.causeOf(err)
	}

	return page, nil
}

func (q *requests) openWatch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	lists := opts.SendInitialEvents != nil
	if lists && q.unended.Load() >= mostUnended {
		return nil, errEndless
	}

	opts.Watch = true
	limit := newLimit(ctx)
	body, err := q.openStream(limit.ctx, opts, acceptMetadata)
	if err != nil {
		limit.endRequest()
		return nil, limit.causeOf(err)
	}

	if !lists {
		limit.watchFor(opts.TimeoutSeconds)
	}

	// After a broken event, the objects are listed again.
	broken := apierrors.NewClientErrorReporter(http.StatusInternalServerError, "watch", "")
	f := &frames{
		body: body, json: json.NewDecoder(body), parts: q.parts, lists: lists, works: q.noteSuccess,
		limit: limit, unended: q.noteUnended, listed: func() { q.unended.Store(0) },
	}
	return watch.NewStreamWatcher(f, broken), nil
}

// mostUnended is the number of unended lists in a row after which the objects are listed the other
// way for good. The first unended list may only mean that an API server ended.
const mostUnended = 2

// noteUnended notes a list of a streaming watch that has no end. One that this end had to end is
// proof enough.
func (q *requests) noteUnended(endless bool) {
	if q.unended.Add(1) >= mostUnended || endless {
		q.unended.Store(mostUnended)
		q.noteFailure(errEndless)
	}
}

// openStream sends a request, and returns the body of the answer. The caller must close the body.
func (q *requests) openStream(ctx context.Context, opts metav1.ListOptions, metadata string) (io.ReadCloser, error) {
	opts.LabelSelector = q.watch.objects.String()
	opts.FieldSelector = q.fieldSelector()
	accept := acceptObjects

	if q.parts.generation {
		accept = metadata
	}

	return q.client.Get().AbsPath(q.requestPath()).SetHeader("Accept", accept).
		SpecificallyVersionedParams(&opts, metav1.ParameterCodec, metav1.SchemeGroupVersion).Stream(ctx)
}

func (q *requests) requestPath() string {
	path := groupVersionPath(q.resource.GroupVersion())
	if q.watch.within != "" {
		path += "/namespaces/" + q.watch.within
	}
	return path + "/" + q.resource.Resource
}

// fieldSelector leaves out the excluded namespaces. Objects without namespace have no such field.
func (q *requests) fieldSelector() string {
	field := "metadata.namespace"
	if q.resource.isNamespaces() {
		field = "metadata.name"
	} else if !q.resource.namespaced {
		return ""
	}

	var terms []fields.Selector
	for _, namespace := range q.watch.without {
		terms = append(terms, fields.OneTermNotEqualSelector(field, namespace))
	}

	return fields.AndSelectors(terms...).String()
}

type list struct {
	metav1.TypeMeta
	metav1.ListMeta

	Items []runtime.Object
}

func (l *list) DeepCopyObject() runtime.Object { return l }

func readList(body io.Reader, p parts) (*list, error) {
	l := &list{}
	in := json.NewDecoder(body)

	var raw json.RawMessage
	readItem := func() error {
		raw = raw[:0] // The next item uses the memory of the last one.
		if err := in.Decode(&raw); err != nil {
			return err
		}

		item, err := p.parseObject(raw)
		l.Items = append(l.Items, item)
		return err
	}

	err := readMembers(in, '{', func() error {
		name, err := in.Token()
		if err != nil {
			return err
		}

		switch name {
		case "metadata":
			return in.Decode(&l.ListMeta)
		case "items":
			return readMembers(in, '[', readItem)
		default:
			return in.Decode(new(json.RawMessage))
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list of the API server: %w", err)
	}

	return l, nil
}

// readMembers calls each for the members of an object or an array. A null is an empty array.
func readMembers(in *json.Decoder, opening json.Delim, each func() error) error {
	open, err := in.Token()
	if err != nil {
		return err
	}

	isEmptyArray := open == nil && opening == '['
	if isEmptyArray {
		return nil
	}
	if open != opening {
		return fmt.Errorf("have %v, want %s", open, opening)
	}

	for in.More() {
		if err := each(); err != nil {
			return err
		}
	}

	_, err = in.Token() // The closing delimiter.
	return err
}

// frames decodes the events of one watch, which the reflector reads in one goroutine. Only Close
// may be called meanwhile.
type frames struct {
	body  io.Closer
	json  *json.Decoder
	parts parts
	// lists says whether the initial objects of the watch are still arriving. They prove nothing.
	lists bool
	works func()
	// limit ends a list that has no end. Unended reports a list without end, and whether the limit
	// ended it. Listed reports the end of a list.
	limit   *limit
	unended func(endless bool)
	listed  func()
	frame   struct {
		Type   watch.EventType `json:"type"`
		Object json.RawMessage `json:"object"`
	}
}

func (f *frames) Decode() (watch.EventType, runtime.Object, error) {
	f.frame.Object = f.frame.Object[:0] // Its memory is used again.
	if err := f.json.Decode(&f.frame); err != nil {
		return "", nil, f.noteEnd(err)
	}
	if f.frame.Type == watch.Error {
		var status metav1.Status
		err := json.Unmarshal(f.frame.Object, &status)
		return watch.Error, &status, err
	}

	object, err := f.parts.parseObject(f.frame.Object)
	if err != nil {
		return "", nil, err
	}

	f.observeObject(object)
	return f.frame.Type, object, nil
}

// observeObject notes that the list goes on, or that the watch works.
func (f *frames) observeObject(object *state) {
	wasListing := f.lists
	f.lists = f.lists && !object.endOfList

	switch {
	case !f.lists:
		f.works()
	case f.frame.Type == watch.Added:
		f.limit.extendWait()
	}

	if wasListing && !f.lists {
		f.listed()
		f.limit.watchFor(nil)
	}
}

// noteEnd returns the error of a stream that has ended, and reports a list without end.
func (f *frames) noteEnd(err error) error {
	over := f.limit.isOver()
	switch {
	case f.lists && over:
		f.unended(true)
		return errEndless
	case f.lists && errors.Is(err, io.EOF):
		f.unended(false)
		return err
	case over:
		return io.EOF // In the place of the end that the API server did not send.
	default:
		return err
	}
}

// Close may be called more than once and while Decode reads.
func (f *frames) Close() {
	f.limit.endRequest()
	_ = f.body.Close()
}
