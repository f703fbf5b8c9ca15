package client

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"sync"

	"github.com/Khan/genqlient/graphql"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client/operations"
)

// What the server answers about images.
type (
	Image           = operations.Image
	ImageEdge       = operations.ImageEdge
	ImageConnection = operations.ImageConnection
	RemovedImage    = operations.RemovedImage
)

// Image returns one of the server's images; NOT_FOUND when there is none of that name.
func (c *Client) Image(ctx context.Context, name string) (*Image, error) {
	return repeat(ctx, c, func(ctx context.Context, api graphql.Client) (*Image, error) {
		answer, err := operations.ImageByName(ctx, api, name)
		if err != nil {
			return nil, err
		}
		if answer.Image == nil {
			return nil, missing("there is no image %q on the server: see the list of images", name)
		}
		return answer.Image, nil
	})
}

// Images returns a page of the server's images in order of their name.
func (c *Client) Images(ctx context.Context, page muster.PageInput) (*ImageConnection, error) {
	return repeat(ctx, c, func(ctx context.Context, api graphql.Client) (*ImageConnection, error) {
		answer, err := operations.ListImages(ctx, api, page.First, page.After)
		if err != nil {
			return nil, err
		}
		return answer.Images, nil
	})
}

// AllImages goes through the server's images, page by page. It ends with the first error.
func (c *Client) AllImages(ctx context.Context) iter.Seq2[*Image, error] {
	return all(func(page muster.PageInput) ([]*Image, PageInfo, error) {
		answer, err := c.Images(ctx, page)
		if err != nil {
			return nil, PageInfo{}, err
		}
		images := make([]*Image, len(answer.Edges))
		for i, edge := range answer.Edges {
			images[i] = edge.Node
		}
		return images, answer.PageInfo, nil
	})
}

// RemoveImage takes an image's name away; what was launched from it runs on.
func (c *Client) RemoveImage(ctx context.Context, name string) (*RemovedImage, error) {
	return once(ctx, c, func(ctx context.Context, api graphql.Client) (*RemovedImage, error) {
		answer, err := operations.RemoveImage(ctx, api, name)
		if err != nil {
			return nil, err
		}
		return answer.RemoveImage, nil
	})
}

// ImportImage sends an archive, plain or compressed by gzip or zstd, and returns the image that
// became of it. It ends with ctx, or when the server has not gone on for a while; the
// timeout of calls does not count. An error of body's ends it, and nothing is imported.
func (c *Client) ImportImage(ctx context.Context, name, source string, body io.Reader) (*Image, error) {
	at := c.beside("images", name)
	at.RawQuery = url.Values{"source": {source}}.Encode()
	noted := &noting{from: body, sum: sha256.New(), trailer: http.Header{contentDigest: nil}}
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, at.String(), noted)
	if err != nil {
		return nil, muster.InvalidField("name", "%q cannot be one: %v", name, err)
	}
	request.Header.Set("Content-Type", "application/octet-stream")
	request.Trailer = noted.trailer
	response, err := c.send(request)
	if err != nil {
		_, refused := errors.AsType[*graphql.HTTPError](err)
		if own := noted.failure(); own != nil && !refused {
			return nil, own // not what the transport makes of it
		}
		return nil, c.fromCall(err)
	}
	defer response.Body.Close()
	image := new(Image)
	if err := json.NewDecoder(response.Body).Decode(image); err != nil {
		return nil, c.fromCall(err)
	}
	return image, nil
}

// contentDigest tells what was sent (RFC 9530), so that it can be compared with what came.
const contentDigest = "Content-Digest"

// noting remembers why reading failed, and in the end puts the digest into the trailer.
type noting struct {
	from    io.Reader
	sum     hash.Hash
	trailer http.Header

	mu  sync.Mutex // an answer can come while the body is still read
	err error
}

func (n *noting) Read(p []byte) (int, error) {
	read, err := n.from.Read(p)
	n.sum.Write(p[:read])
	switch {
	case err == io.EOF: //nolint:errorlint // io.Reader's own contract
		n.trailer.Set(contentDigest, "sha-256=:"+base64.StdEncoding.EncodeToString(n.sum.Sum(nil))+":")
	case err != nil:
		n.mu.Lock()
		n.err = err
		n.mu.Unlock()
	}
	return read, err
}

func (n *noting) failure() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.err
}

// OpenImage reads the archive of a digest from an offset on, and tells its whole size. The caller closes
// it. NOT_FOUND: the server no longer has it. INVALID: it is not that long.
func (c *Client) OpenImage(ctx context.Context, digest string, offset int64) (io.ReadCloser, int64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.beside("images", "blobs", digest).String(), nil)
	if err != nil {
		return nil, 0, muster.InvalidField("digest", "%q cannot be one: %v", digest, err)
	}
	if offset > 0 {
		request.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
	}
	response, err := c.send(request)
	if err != nil {
		return nil, 0, c.fromCall(err)
	}
	size := response.ContentLength
	if offset > 0 {
		if response.StatusCode != http.StatusPartialContent {
			return nil, 0, c.notPart(response)
		}
		size += offset
	}
	return response.Body, size, nil
}

// notPart is an answer that has the whole of what a part was asked of.
func (c *Client) notPart(response *http.Response) error {
	_ = response.Body.Close()
	return &muster.Error{Code: muster.Internal, Message: c.endpoint.Host + " answered " + strconv.Itoa(response.StatusCode) + " where it should send a part: check the URL"}
}

// beside is the address of a route of the same server as the API's.
func (c *Client) beside(path ...string) *url.URL {
	at := *c.endpoint
	at.Path, at.RawPath = "/", ""
	return at.JoinPath(path...)
}

// send makes a request that is not of GraphQL; what is no success is an error.
func (c *Client) send(request *http.Request) (*http.Response, error) {
	for name, values := range c.header() {
		request.Header[name] = values
	}
	httpClient := http.Client{Transport: c.options.Transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := httpClient.Do(request)
	if err != nil || response.StatusCode < http.StatusMultipleChoices {
		return response, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	if err != nil {
		return nil, err
	}
	refused := &graphql.HTTPError{StatusCode: response.StatusCode}
	_ = json.Unmarshal(text, &refused.Response) // a text that is none has no code
	return nil, refused
}
